//! Replays the changes of a coordinator's `idgen.segment` and `idgen.segment_server`, and those of an attached server's
//! `idgen.segment`, beside the values that its sessions have drawn.
//!
//! A server's table of draws is `public.drawn` with the column value. A row of `public.started` marks a start of the server.

use super::Report;
use super::decoded::{Change, Kind, Transaction};
use crate::model::fleet::{Step, Tag};
use std::collections::{BTreeMap, BTreeSet};

/// A range that a server has recorded, and the lowest of its values that was drawn.
#[derive(Clone, Copy, Debug)]
struct Received {
    last: i64,
    first_drawn: Option<i64>,
}

/// What a server has received.
#[derive(Debug, Default)]
pub struct Server {
    /// Its number at the coordinator.
    number: i64,
    received: Vec<Received>,
    drawn: BTreeSet<i64>,
    pub report: Report,
}

impl Server {
    /// With its number at the coordinator.
    pub fn new(number: i64) -> Self {
        Self { number, ..Self::default() }
    }

    /// Replays the transactions of the server.
    pub fn replay(&mut self, transactions: &[Transaction]) {
        // The highest value received when the server started last, until it draws.
        let mut started = None;
        for change in transactions.iter().flat_map(|one| &one.changes).filter(|change| change.kind != Kind::Delete) {
            match change.table.as_str() {
                "idgen.segment" => self.receive(change.number("max_id")),
                "public.started" => started = Some(self.last()),
                "public.drawn" => self.draw(change.number("value"), started.take()),
                _ => {}
            }
        }
    }

    fn last(&self) -> i64 {
        self.received.last().map_or(0, |received| received.last)
    }

    fn receive(&mut self, last: i64) {
        if last > self.last() {
            *self.report.steps.entry("record").or_default() += 1;
            self.received.push(Received { last, first_drawn: None });
        }
    }

    fn draw(&mut self, value: i64, started: Option<i64>) {
        if let Some(received) = started {
            let start = Step::Start { keeps_stock: value <= received };
            self.report.check("start", &(value, start), &start.broken());
        }
        let install = Step::Install { last: value, is_confirmed: true, received: self.last() };
        self.report.check("draw", &install, &install.broken());
        if !self.drawn.insert(value) {
            self.report.refused.push(format!("{value} is drawn twice"));
        }
        if let Some(range) = self.received.iter_mut().find(|range| range.last >= value) {
            range.first_drawn = Some(range.first_drawn.map_or(value, |first| first.min(value)));
        }
    }
}

/// Replays the transactions of the coordinator of a tag, whose servers have been replayed. Notes each grant, and that
/// each range that a server has recorded was granted to it.
pub fn coordinator(tag: &str, transactions: &[Transaction], servers: &[Server]) -> Report {
    let mut report = Report::default();
    let mut max_id = 0;
    let mut reports: BTreeMap<i64, (i64, String)> = BTreeMap::new();
    // The last values granted, by the server.
    let mut granted: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for transaction in transactions {
        let of_tag = |table| move |change: &&Change| change.table == table && change.text("tag") == tag;
        let reported = transaction.changes.iter().find(of_tag("idgen.segment_server"));
        let raised = transaction
            .changes
            .iter()
            .find(of_tag("idgen.segment"))
            .map(|row| (row.number("max_id"), row.optional("history")));
        let server = reported.map(|change| change.number("server"));
        if let Some(change) = reported.filter(|change| change.kind != Kind::Delete) {
            let received = change.number("max_id");
            let has_answer = server.and_then(|server| granted.get(&server)?.last()).is_some_and(|last| {
                received < *last
                    && servers.iter().any(|known| Some(known.number) == server && known.has_recorded(*last))
            });
            let step = Step::Report { has_answer };
            report.check("report", &(server, step), &step.broken());
            reports.insert(change.number("server"), (received, change.text("history").to_owned()));
        }
        if let Some((raised, history)) = raised.filter(|(raised, _)| *raised > max_id) {
            let receiver = servers.iter().find(|known| Some(known.number) == server);
            if let Some(first) = receiver.and_then(|known| known.first_of(raised)) {
                let unreported = reports.values().filter(|(_, report)| Some(report.as_str()) != history).count();
                let highest = reports.values().map(|(max_id, _)| *max_id).max().unwrap_or(0);
                let step = Step::Grant { tag: Tag { max_id, unreported, reported: highest }, first };
                report.check("grant", &(server, raised, step), &step.broken());
            }
            if let Some(server) = server {
                granted.entry(server).or_default().push(raised);
            }
            max_id = raised;
        }
    }
    for known in servers {
        let of_server = granted.get(&known.number);
        for range in known.received.iter().filter(|range| range.first_drawn.is_some()) {
            if !of_server.is_some_and(|granted| granted.contains(&range.last)) {
                report.refused.push(format!("{range:?} of server {} was not granted to it", known.number));
            }
        }
    }
    report
}

impl Server {
    fn has_recorded(&self, last: i64) -> bool {
        self.received.iter().any(|range| range.last == last)
    }

    fn first_of(&self, last: i64) -> Option<i64> {
        self.received.iter().find(|range| range.last == last)?.first_drawn
    }
}
