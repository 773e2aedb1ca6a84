//! Layouts as text: `time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01`, or the name of a preset.

use super::{Layout, Span, Tag, Ticks};
use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use std::borrow::Cow;
use std::fmt;

/// Name and spec. Bits and epoch are those that the named system publishes. A preset never changes: ids made in it must
/// decode for ever.
pub const PRESETS: [(&str, &str); 9] = [
    // Twitter's epoch is 1288834974657 ms.
    ("snowflake", "time:41 worker:10 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z"),
    ("twitter", "time:41 datacenter:5 worker:5 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z"),
    ("sonyflake", "time:39 sequence:8 worker:16 unit:10ms epoch:2014-09-01"),
    // Instagram's epoch is 1314220021721 ms. It names 41 bits of time with 13 and 10 others, in all 64. The highest is
    // the sign, so 40 can be used, until 2046.
    ("instagram", "time:40 worker:13 sequence:10 unit:1ms epoch:2011-08-24T21:07:01.721Z"),
    // 42 bits of time, the highest of which would be the sign. Discord's epoch is the first second of 2015.
    ("discord", "time:41 datacenter:5 worker:5 sequence:12 unit:1ms epoch:2015-01-01"),
    // The defaults of tsid-creator: 1,024 nodes.
    ("tsid", "time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01"),
    ("pgedge", "time:41 worker:10 sequence:12 unit:1ms epoch:2023-01-01"),
    ("seconds", "time:31 sequence:32 unit:1s epoch:2010-01-01"),
    ("js53", "time:41 worker:3 sequence:9 unit:1ms epoch:2020-01-01"),
];

/// Milliseconds in fewer bits end within a quarter of an hour. More bits leave no room for a sequence.
const TIME_BITS: (u8, u8) = (20, 62);
const SEQUENCE_BITS: (u8, u8) = (1, 32);
/// These fields are shown as a PostgreSQL integer.
const OTHER_BITS: (u8, u8) = (1, 31);
const TOTAL_BITS: u32 = 63;
/// 9999-12-31T23:59:59.999Z, the last year with four digits.
const LAST_EPOCH_MS: i64 = 253_402_300_799_999;
const MS_PER_DAY: i64 = 86_400_000;

/// The words read so far.
#[derive(Default)]
struct Draft<'a> {
    /// Names and numbers of bits, from the highest field to the lowest.
    fields: Vec<(&'a str, u8)>,
    tag_value: u32,
    unit_ms: Option<u32>,
    epoch_ms: Option<i64>,
}

impl Layout {
    /// Reads a preset's name or a spec.
    ///
    /// The rules: `time` comes first, with 20 to 62 bits. One `sequence` has 1 to 32. `worker`, `datacenter` (only with
    /// a worker) and `tag` are optional, with 1 to 31 each. Together they have at most 63. A tag's value fits its bits.
    /// `unit` is 1ms to 1s, by default 1ms. `epoch` is a date, a time or milliseconds since 1970, from 1970 to 9999.
    ///
    /// The error is a sentence, for a DETAIL.
    pub fn parse(text: &str) -> Result<Layout, String> {
        let mut words = text.split_whitespace();
        let spec = match (words.next(), words.next()) {
            (None, _) => return Err("The text is empty.".to_owned()),
            (Some(name), None) if !name.contains(':') => {
                let preset = PRESETS.iter().find(|(preset, _)| *preset == name);
                preset.ok_or_else(|| at(name, "no preset has this name".into()))?.1
            }
            _ => text,
        };
        let mut draft = Draft::default();
        for word in spec.split_whitespace() {
            draft.read(word).map_err(|problem| at(word, problem))?;
        }
        draft.finish().map_err(|problem| format!("{problem}."))
    }
}

/// An error of a word, or of the whole layout.
type Problem = Cow<'static, str>;

fn at(word: &str, problem: Problem) -> String {
    format!("At \"{word}\": {problem}.")
}

impl<'a> Draft<'a> {
    fn read(&mut self, word: &'a str) -> Result<(), Problem> {
        let (key, value) = word.split_once(':').ok_or("expected name:value")?;
        match key {
            "time" => self.field(key, value, TIME_BITS),
            "sequence" => self.field(key, value, SEQUENCE_BITS),
            "worker" | "datacenter" => self.field(key, value, OTHER_BITS),
            "tag" => self.tag(value),
            "unit" => set_once(&mut self.unit_ms, parse_unit(value)?),
            "epoch" => set_once(&mut self.epoch_ms, parse_epoch(value)?),
            _ => Err("unknown word".into()),
        }
    }

    fn field(&mut self, key: &'a str, bits: &str, (min, max): (u8, u8)) -> Result<(), Problem> {
        if self.fields.is_empty() != (key == "time") {
            return Err("\"time\" must be the first field".into());
        }
        if self.fields.iter().any(|(other, _)| *other == key) {
            return Err("given twice".into());
        }
        let in_range = digits(bits).filter(|bits| (min.into()..=max.into()).contains(bits));
        let bits = in_range.ok_or_else(|| format!("this field must have {min} to {max} bits"))? as u8;
        self.fields.push((key, bits));
        Ok(())
    }

    fn tag(&mut self, value: &str) -> Result<(), Problem> {
        let (bits, tag) = value.split_once('=').ok_or("expected tag:bits=value")?;
        self.field("tag", bits, OTHER_BITS)?;
        let max = self.span("tag").map_or(0, Span::max);
        let fits = digits(tag).filter(|tag| *tag <= max);
        self.tag_value = fits.ok_or_else(|| format!("the value must be 0 to {max}"))? as u32;
        Ok(())
    }

    fn span(&self, key: &str) -> Option<Span> {
        let at = self.fields.iter().position(|(field, _)| *field == key)?;
        let shift = self.fields[at + 1..].iter().map(|(_, bits)| bits).sum();
        Some(Span { shift, bits: self.fields[at].1 })
    }

    fn finish(self) -> Result<Layout, Problem> {
        let total: u32 = self.fields.iter().map(|(_, bits)| u32::from(*bits)).sum();
        if total > TOTAL_BITS {
            return Err(format!("The fields have {total} bits; the maximum is {TOTAL_BITS}").into());
        }
        let layout = Layout {
            time: self.span("time").ok_or("The field \"time\" is missing")?,
            datacenter: self.span("datacenter"),
            worker: self.span("worker"),
            tag: self.span("tag").map(|span| Tag { span, value: self.tag_value }),
            sequence: self.span("sequence").ok_or("The field \"sequence\" is missing")?,
            ticks: Ticks {
                unit_ms: self.unit_ms.unwrap_or(1),
                epoch_ms: self.epoch_ms.ok_or("The word \"epoch\" is missing")?,
            },
        };
        if layout.datacenter.is_some() && layout.worker.is_none() {
            return Err("The field \"datacenter\" requires a field \"worker\"".into());
        }
        Ok(layout)
    }
}

fn set_once<T>(target: &mut Option<T>, value: T) -> Result<(), Problem> {
    match target.replace(value) {
        None => Ok(()),
        Some(_) => Err("given twice".into()),
    }
}

/// Decimal digits only: no sign, no space, no underscore.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn parse_unit(text: &str) -> Result<u32, Problem> {
    let unit_ms = match text.strip_suffix("ms") {
        Some(number) => digits(number),
        None => text.strip_suffix('s').and_then(digits).and_then(|s| s.checked_mul(1000)),
    };
    unit_ms
        .filter(|ms| (1..=1000).contains(ms))
        .map(|ms| ms as u32)
        .ok_or("the unit must be 1ms to 1000ms, or 1s".into())
}

fn parse_epoch(text: &str) -> Result<i64, Problem> {
    let parsed = if let Some(number) = text.strip_suffix("ms") {
        digits(number).and_then(|ms| i64::try_from(ms).ok())
    } else if let Ok(date) = text.parse::<NaiveDate>() {
        Some(date.and_time(chrono::NaiveTime::MIN).and_utc().timestamp_millis())
    } else {
        DateTime::parse_from_rfc3339(text).ok().map(|time| time.timestamp_millis())
    };
    parsed
        .filter(|ms| (0..=LAST_EPOCH_MS).contains(ms))
        .ok_or("the epoch must be a date or time from 1970 to 9999, or milliseconds since 1970".into())
}

/// The canonical spec: [`Layout::parse`] reads it as the same layout.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut below = vec![(self.sequence, "sequence")];
        below.extend(self.datacenter.map(|span| (span, "datacenter")));
        below.extend(self.worker.map(|span| (span, "worker")));
        below.extend(self.tag.map(|tag| (tag.span, "tag")));
        below.sort_by_key(|(span, _)| std::cmp::Reverse(span.shift));

        write!(f, "time:{}", self.time.bits)?;
        for (span, name) in below {
            write!(f, " {name}:{}", span.bits)?;
            if let ("tag", Some(tag)) = (name, self.tag) {
                write!(f, "={}", tag.value)?;
            }
        }
        match self.ticks.unit_ms {
            1000 => write!(f, " unit:1s")?,
            unit_ms => write!(f, " unit:{unit_ms}ms")?,
        }
        let epoch = time_text(self.ticks.epoch_ms);
        let is_midnight = self.ticks.epoch_ms % MS_PER_DAY == 0;
        write!(f, " epoch:{}", if is_midnight { &epoch[.."1970-01-01".len()] } else { &epoch })
    }
}

/// An instant in milliseconds since 1970, as RFC 3339 in UTC; `infinity` past the end of the calendar.
pub fn time_text(time_ms: i64) -> String {
    rfc3339(DateTime::from_timestamp_millis(time_ms))
}

/// The same for microseconds since 1970.
pub fn time_text_us(time_us: i64) -> String {
    rfc3339(DateTime::from_timestamp_micros(time_us))
}

fn rfc3339(time: Option<DateTime<Utc>>) -> String {
    time.map_or("infinity".to_owned(), |time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}
