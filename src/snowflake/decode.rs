//! The SQL functions that read ids, compute ids of a time, and write ids as text. They work everywhere: without
//! preload, and on a standby.
//!
//! With a layout they are IMMUTABLE, and raise 22023 for an invalid one. Without a layout they depend on
//! `idgen.layout`, which changes only when the server starts, and are STABLE. Those of texts are IMMUTABLE. All are
//! STRICT.

use super::errors;
use super::layouts;
use crate::pg::datum::{self, Composite, Text};
use idgen_core::layout::{Layout, Node, Parts};
use idgen_core::text::Format;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;

/// The parts of an id; NULL for a field that the layout lacks. Raises 22003 if the id is not of the layout, and 22008 if its
/// time is out of range for a timestamp.
#[pg_extern(sql = false)]
fn snowflake_parts(id: i64) -> Composite<5> {
    parts(id, &layouts::default())
}

#[pg_extern(sql = false)]
fn snowflake_parts_in(id: i64, layout: Text) -> Composite<5> {
    parts(id, &layouts::parsed(&layout))
}

fn parts(id: i64, layout: &Layout) -> Composite<5> {
    let (parts, time) = unpacked(id, layout);
    let int = |field: Option<u32>| DatumWithOid::from(field.map(|value| value as i32));
    Composite([time.into(), int(parts.datacenter), int(parts.worker), int(parts.tag), (parts.sequence as i64).into()])
}

/// The start of the id's tick. Raises what `snowflake_parts` raises.
#[pg_extern(sql = false)]
fn snowflake_time(id: i64) -> TimestampWithTimeZone {
    unpacked(id, &layouts::default()).1
}

#[pg_extern(sql = false)]
fn snowflake_time_in(id: i64, layout: Text) -> TimestampWithTimeZone {
    unpacked(id, &layouts::parsed(&layout)).1
}

fn unpacked(id: i64, layout: &Layout) -> (Parts, TimestampWithTimeZone) {
    let parts = layout.unpack(id).unwrap_or_else(|e| errors::id(e, id, layout).raise());
    (parts, datum::from_ms(parts.time_ms).unwrap_or_else(|| errors::time_out_of_range(id).raise()))
}

/// The least id of the tick that contains the time. Clamped to the layout.
#[pg_extern(sql = false)]
fn snowflake_floor(ts: TimestampWithTimeZone) -> i64 {
    layouts::default().floor(datum::to_ms(ts))
}

#[pg_extern(sql = false)]
fn snowflake_floor_in(ts: TimestampWithTimeZone, layout: Text) -> i64 {
    layouts::parsed(&layout).floor(datum::to_ms(ts))
}

/// The greatest id of the tick that contains the time. Clamped to the layout.
#[pg_extern(sql = false)]
fn snowflake_ceil(ts: TimestampWithTimeZone) -> i64 {
    layouts::default().ceil(datum::to_ms(ts))
}

#[pg_extern(sql = false)]
fn snowflake_ceil_in(ts: TimestampWithTimeZone, layout: Text) -> i64 {
    layouts::parsed(&layout).ceil(datum::to_ms(ts))
}

/// The id with these parts. Raises 22003 for a part that does not fit the layout, and 22008 for an infinite time.
#[pg_extern(sql = false)]
fn snowflake_make(ts: TimestampWithTimeZone, worker: i32, sequence: i64, datacenter: i32) -> i64 {
    make(ts, worker, sequence, datacenter, &layouts::default())
}

#[pg_extern(sql = false)]
fn snowflake_make_in(ts: TimestampWithTimeZone, worker: i32, sequence: i64, layout: Text) -> i64 {
    make(ts, worker, sequence, 0, &layouts::parsed(&layout))
}

#[pg_extern(sql = false)]
fn snowflake_make_with_datacenter_in(
    ts: TimestampWithTimeZone,
    worker: i32,
    sequence: i64,
    datacenter: i32,
    layout: Text,
) -> i64 {
    make(ts, worker, sequence, datacenter, &layouts::parsed(&layout))
}

fn make(ts: TimestampWithTimeZone, worker: i32, sequence: i64, datacenter: i32, layout: &Layout) -> i64 {
    let time_ms = datum::to_ms(ts);
    if matches!(time_ms, i64::MIN | i64::MAX) {
        errors::ts_not_finite().raise();
    }
    let unsigned =
        |name, value: i32| u32::try_from(value).unwrap_or_else(|_| errors::negative_part(name, value.into()).raise());
    let node = Node { datacenter: Some(unsigned("datacenter", datacenter)), worker: unsigned("worker", worker) };
    let unsigned_sequence =
        u64::try_from(sequence).unwrap_or_else(|_| errors::negative_part("sequence", sequence).raise());
    layout.pack(time_ms, node, unsigned_sequence).unwrap_or_else(|e| errors::id(e, sequence, layout).raise())
}

/// The properties of a layout: canonical spec, size in bits, unit of time, epoch, capacity and end.
#[pg_extern(sql = false)]
fn snowflake_layout() -> Composite<7> {
    describe(&layouts::default())
}

#[pg_extern(sql = false)]
fn snowflake_layout_in(layout: Text) -> Composite<7> {
    describe(&layouts::parsed(&layout))
}

fn describe(layout: &Layout) -> Composite<7> {
    Composite([
        layout.to_string().into(),
        (layout.bits() as i32).into(),
        datum::interval_of_us(i64::from(layout.unit_ms()) * 1000).into(),
        datum::from_ms_or_infinity(layout.epoch_ms()).into(),
        (layout.workers() as i64).into(),
        (layout.ids_per_second() as i64).into(),
        datum::from_ms_or_infinity(layout.ends_at_ms()).into(),
    ])
}

/// An id as text. Raises 22023 for an unknown format, 22003 for a negative id.
#[pg_extern(sql = false)]
fn snowflake_encode(id: i64, format: Text) -> String {
    named(&format).encode(id).unwrap_or_else(|e| errors::text(&id.to_string(), &format, e).raise())
}

/// The id of a text. Raises 22023 for an unknown format or a malformed text, 22003 for a number too large.
#[pg_extern(sql = false)]
fn snowflake_decode(text: Text, format: Text) -> i64 {
    named(&format).decode(&text).unwrap_or_else(|e| errors::text(&text, &format, e).raise())
}

fn named(format: &str) -> Format {
    Format::named(format).unwrap_or_else(|| errors::unknown_format(format).raise())
}
