//! L2 for one lease, whatever happens to it: there are never more holders than slots.

use super::*;

/// Times are in microseconds. A `usize` selects a holder.
#[derive(Clone, Copy, Debug)]
enum Event {
    Acquire {
        bound: bool,
    },
    AcquireShared {
        bound: bool,
    },
    Renew(usize),
    Release(usize),
    Revoke(usize),
    SessionEnds(usize),
    Pass(i64),
    /// Another server continues with the rows, by an unrelated clock that shows this time.
    Failover(i64),
    Define {
        slots: i32,
        lock_delay_us: i64,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let holder = || 0usize..6;
    let event = prop_oneof![
        4 => any::<bool>().prop_map(|bound| Event::Acquire { bound }),
        3 => any::<bool>().prop_map(|bound| Event::AcquireShared { bound }),
        2 => holder().prop_map(Event::Renew),
        2 => holder().prop_map(Event::Release),
        1 => holder().prop_map(Event::Revoke),
        1 => holder().prop_map(Event::SessionEnds),
        4 => (0..150i64).prop_map(Event::Pass),
        1 => (0..1_000i64).prop_map(Event::Failover),
        1 => (1..5i32, 0..60i64).prop_map(|(slots, lock_delay_us)| Event::Define { slots, lock_delay_us }),
    ];
    proptest::collection::vec(event, 1..120)
}

/// A holder as it sees itself, by true time, which no clock shows.
#[derive(Debug)]
struct Holder {
    token: i64,
    is_shared: bool,
    /// The end of the lease that the holder knows; `None` while the session of a bound one lives.
    until: Option<i64>,
}

/// Rows and holders, changed as by the extension.
struct World {
    terms: Vec<Term>,
    holders: Vec<Holder>,
    definition: LeaseDefinition,
    /// True time, and how far the server's clock is ahead of it.
    time: i64,
    clock_offset: i64,
    began_us: i64,
    next_token: i64,
    /// How many may hold the lease now. After the slots were lowered, the holders at that time, until the next grant.
    may_hold: usize,
}

impl World {
    const TTL: i64 = 100;

    fn now(&self) -> Now {
        Now { now_us: self.time + self.clock_offset, began_us: self.began_us }
    }

    fn term(&mut self, holder: usize) -> Option<(&mut Term, usize)> {
        let index = holder.checked_rem(self.holders.len())?;
        let token = self.holders[index].token;
        self.terms.iter_mut().find(|term| term.token == token && term.depth > 0).map(|term| (term, index))
    }

    /// The holders whose lease has not ended, as far as they know: how many of a slot, and how many of a shared term.
    fn unexpired(&self) -> (usize, usize) {
        let unexpired = self.holders.iter().filter(|holder| holder.until.is_none_or(|until| self.time < until));
        let (shared, of_slots): (Vec<_>, Vec<_>) = unexpired.partition(|holder| holder.is_shared);
        (of_slots.len(), shared.len())
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Acquire { bound } => self.acquire(bound),
            Event::AcquireShared { bound } => self.acquire_shared(bound),
            Event::Renew(holder) => {
                let until = self.time + Self::TTL;
                if let Some((term, index)) = self.term(holder) {
                    (term.ends_us, term.by_this_clock) = (now.now_us + Self::TTL, true);
                    if term.session != Session::Lives {
                        term.session = Session::None;
                        self.holders[index].until = Some(until);
                    }
                }
            }
            Event::Release(holder) | Event::Revoke(holder) => {
                if let Some((term, index)) = self.term(holder) {
                    (term.depth, term.ends_us, term.by_this_clock) = (0, now.now_us, true);
                    (term.session, term.revoked) = (Session::None, matches!(event, Event::Revoke(_)));
                    self.holders.swap_remove(index);
                }
            }
            Event::SessionEnds(holder) => {
                let time = self.time;
                if let Some((term, index)) = self.term(holder)
                    && term.session == Session::Lives
                {
                    term.session = Session::Ended { since_us: now.now_us };
                    self.holders[index].until = Some(time);
                }
            }
            Event::Pass(us) => self.time += us,
            Event::Failover(clock_us) => self.fail_over(clock_us),
            Event::Define { slots, lock_delay_us } => {
                self.definition = LeaseDefinition { slots, lock_delay_us, ..self.definition };
                self.may_hold = self.of_slots().max(slots as usize);
            }
        }
        // L2.
        let ((unexpired, shared), slots) = (self.unexpired(), self.definition.slots);
        assert!(unexpired <= self.may_hold, "{unexpired} holders of {slots} slots: {:?}", self.holders);
        assert!(unexpired == 0 || shared == 0, "{unexpired} holders beside {shared} shared ones: {:?}", self.holders);
        // An expired term stays exclusive, and may be renewed and fenced, until it is taken over.
        let is_term = |holder: &Holder| self.terms.iter().any(|term| term.token == holder.token && term.depth > 0);
        assert!(self.holders.iter().all(is_term), "{:?}", self.holders);
    }

    fn fail_over(&mut self, clock_us: i64) {
        self.clock_offset = clock_us - self.time;
        self.began_us = clock_us;
        for term in &mut self.terms {
            term.by_this_clock = false;
            if matches!(term.session, Session::Lives | Session::Ended { .. }) {
                term.session = Session::EndedWithServer;
            }
        }
        for holder in &mut self.holders {
            holder.until = Some(holder.until.unwrap_or(self.time + Self::TTL));
        }
    }

    fn acquire(&mut self, bound: bool) {
        let now = self.now();
        let slot = match decide(&self.terms, &self.definition, now) {
            Decision::Take { slots, all } => {
                assert_eq!(all, slots.len() == self.definition.slots as usize);
                slots[0]
            }
            Decision::Make { slot } => slot,
            Decision::Wait { until_us } => {
                assert!(until_us.is_none_or(|until_us| until_us > now.now_us));
                return;
            }
            Decision::Share => unreachable!("a slot is asked for"),
        };
        assert!(self.definition.has(slot));
        for slot in ends_before(&self.terms, &self.definition, slot, now) {
            let term = self.terms.iter_mut().find(|term| term.slot == slot).expect("an existing row");
            assert!(!term.is_held(now), "a running term is not taken over");
            term.depth = 0;
            let token = term.token;
            self.holders.retain(|holder| holder.token != token);
        }
        if self.terms.iter().any(|term| term.slot == slot) {
            self.remove(slot);
        }
        self.begin(slot, bound);
        self.may_hold = self.definition.slots as usize;
        let (holders, slots) = (self.holders.len(), self.may_hold);
        assert!(holders <= slots, "{holders} holders of {slots} slots may renew or fence: {:?}", self.holders);
    }

    fn begin(&mut self, slot: i32, bound: bool) {
        self.next_token += 1;
        let session = if bound { Session::Lives } else { Session::None };
        let (token, ends_us) = (self.next_token, self.now().now_us + Self::TTL);
        self.terms.push(Term { token, session, ttl_us: Self::TTL, ..held(slot, ends_us) });
        let until = (!bound).then_some(self.time + Self::TTL);
        self.holders.push(Holder { token, is_shared: slot >= FIRST_SHARED, until });
    }

    fn acquire_shared(&mut self, bound: bool) {
        let now = self.now();
        let slots: Vec<Term> = self.terms.iter().copied().filter(|term| !term.is_shared()).collect();
        match decide_shared(&slots, &self.definition, now) {
            Decision::Share => {
                let ends = ends_before(&slots, &self.definition, FIRST_SHARED, now);
                ends.into_iter().for_each(|slot| self.remove(slot));
            }
            Decision::Wait { until_us } => {
                assert!(until_us.is_none_or(|until_us| until_us > now.now_us));
                return;
            }
            other => unreachable!("{other:?}"),
        }
        self.begin(FIRST_SHARED + self.next_token as i32, bound);
        let shared = self.holders.iter().filter(|holder| holder.is_shared).count();
        assert_eq!(shared, self.holders.len(), "others may renew or fence: {:?}", self.holders);
    }

    /// Removes the row of a term that is over.
    fn remove(&mut self, slot: i32) {
        let now = self.now();
        let index = self.terms.iter().position(|term| term.slot == slot).expect("an existing row");
        let last = self.terms.swap_remove(index);
        assert!(!last.is_held(now), "a running term is not taken over");
        self.holders.retain(|holder| holder.token != last.token);
    }

    fn of_slots(&self) -> usize {
        self.holders.iter().filter(|holder| !holder.is_shared).count()
    }
}

proptest! {
    #[test]
    fn holders_never_exceed_slots(events in events()) {
        let mut world = World {
            terms: Vec::new(),
            holders: Vec::new(),
            definition: LeaseDefinition { slots: 2, ttl_us: World::TTL, lock_delay_us: 0 },
            time: 1_000_000,
            clock_offset: 0,
            began_us: 0,
            next_token: 0,
            may_hold: 2,
        };
        for event in events {
            world.happen(event);
        }
        // Without sessions, every slot is free after the ttl and the lock delay.
        for term in &mut world.terms {
            if term.session == Session::Lives {
                term.session = Session::None;
            }
        }
        world.time += 2 * World::TTL + world.definition.lock_delay_us;
        let decision = decide(&world.terms, &world.definition, world.now());
        let is_free = !matches!(decision, Decision::Wait { .. });
        prop_assert!(is_free, "{decision:?}");
    }
}
