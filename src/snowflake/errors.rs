//! The errors of snowflake ids.

use crate::pg::ereport::{Report, errors};
use crate::settings;
use idgen_core::clock::LATEST_MS;
use idgen_core::layout::{IdError, Layout, NodeError, PRESETS, time_text};
use idgen_core::text::{FORMATS, TextError};

errors! {
    fn observed_too_far_ahead(id: i64, time_ms: i64) {
        ERRCODE_INVALID_PARAMETER_VALUE: "id \"{id}\" is more than a day ahead of the clock";
        detail: "Its time is {}. All later ids of this server would begin there.", time_text(time_ms);
        hint: "Check the id and its layout. If both are right, pass force => true.";
    }

    /// Ids could never fall back to a clock that ends before them.
    fn observed_beyond_clocks(id: i64, time_ms: i64) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "id \"{id}\" is later than any time of the server's clock";
        detail: "Its time is {}. The clock ends at {}.", time_text(time_ms), time_text(LATEST_MS);
        hint: "Check the id and its layout.";
    }

    fn before_epoch(layout: &Layout, now_ms: i64) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "the clock is before the epoch of the layout";
        detail: "The server's clock is at {}. The epoch is {}.", time_text(now_ms), time_text(layout.epoch_ms());
        hint: "Use a layout with an epoch in the past, or correct the server's clock.";
    }

    fn exhausted(layout: &Layout) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "the time bits of the layout are exhausted";
        detail: "The layout has no ids from {} on.", time_text(layout.ends_at_ms());
        hint: "For new columns, use a layout with more time bits, a longer unit or a later epoch. Its ids can equal those \
            of this one.";
    }

    fn negative_part(name: &str, value: i64) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "{name} must not be negative: \"{value}\"";
    }

    fn time_out_of_range(value: i64) {
        ERRCODE_DATETIME_FIELD_OVERFLOW: "the time of id \"{value}\" is out of range for a timestamp";
    }

    fn ts_not_finite() {
        ERRCODE_DATETIME_FIELD_OVERFLOW: "ts must be finite";
    }

    fn change_usage(detail: &str) {
        ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED: "snowflake_change() must be called by one of its triggers";
        detail: "{}", detail;
        hint: "CREATE TRIGGER ... BEFORE INSERT OR UPDATE ON ... FOR EACH ROW EXECUTE FUNCTION snowflake_change('column'); \
            and CREATE TRIGGER ... AFTER UPDATE OR DELETE ON ... FOR EACH ROW EXECUTE FUNCTION \
            snowflake_change('column', 'table for keys');";
    }

    fn truncation_unseen(table: &str) {
        ERRCODE_FEATURE_NOT_SUPPORTED: "cannot truncate \"{table}\": its consumers would not learn which rows are gone";
        hint: "Use DELETE. Or drop the trigger of snowflake_change(), and let each consumer read all rows again.";
    }

    fn layout(text: &str, error: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid layout \"{text}\"";
        detail: "{error}";
        hint: "Use a preset ({}) or a spec such as \"time:41 worker:10 sequence:12 unit:1ms epoch:2020-01-01\".",
            names(&PRESETS);
    }

    /// The worker id or datacenter of this server does not fit the layout.
    fn node_too_large(layout: &Layout, error: NodeError) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "{} id \"{}\" of this server does not fit layout \"{layout}\"", error.field,
            error.value;
        detail: "{}", valid_values(&error);
        hint: "{}", node_hint(error.field);
    }

    /// An id that is not of the layout.
    fn negative_id(value: i64) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "\"{value}\" is not a snowflake id";
        detail: "An id is never negative.";
    }

    fn too_many_bits(value: i64, layout: &Layout, bits: u32) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "\"{value}\" is not an id of layout \"{layout}\"";
        detail: "An id of the layout has at most {bits} bits.";
    }

    fn ts_before_epoch(layout: &Layout) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "ts is before the epoch of the layout";
        detail: "The epoch is {}.", time_text(layout.epoch_ms());
    }

    fn ts_after_end(layout: &Layout) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "ts is after the end of the layout";
        detail: "The layout has no ids from {} on.", time_text(layout.ends_at_ms());
    }

    fn sequence_too_large(value: i64, layout: &Layout, max: u64) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "sequence \"{value}\" does not fit layout \"{layout}\"";
        detail: "Valid values are 0 to {max}.";
    }

    fn part_too_large(layout: &Layout, error: &NodeError) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "{} \"{}\" does not fit layout \"{layout}\"", error.field, error.value;
        detail: "{}", valid_values(error);
    }

    fn unknown_format(format: &str) {
        ERRCODE_INVALID_PARAMETER_VALUE: "unknown text format \"{format}\"";
        hint: "Use one of {}.", names(&FORMATS);
    }

    fn number_without_text(value: &str, error: &TextError) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "\"{value}\" is not a snowflake id";
        detail: "{error}";
    }

    fn text_too_large(value: &str, format: &str, error: &TextError) {
        ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE: "\"{value}\" is too large for an id in {format}";
        detail: "{error}";
    }

    fn not_an_id(value: &str, format: &str, error: &TextError) {
        ERRCODE_INVALID_PARAMETER_VALUE: "\"{value}\" is not an id in {format}";
        detail: "{error}";
    }

    fn layout_ends(layout: &str, ends_at: &str) {
        ERRCODE_WARNING: "layout \"{layout}\" has no ids from {ends_at} on";
    }

    fn not_owner_of_relation() {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be owner of the relation";
    }
}

fn valid_values(NodeError { field, max, .. }: &NodeError) -> String {
    match max {
        0 => format!("The layout has no field \"{field}\", so the only valid value is 0."),
        _ => format!("Valid values are 0 to {max}."),
    }
}

/// An id that is not of the layout, or an argument of `snowflake_make` that does not fit it.
pub fn id(error: IdError, value: i64, layout: &Layout) -> Report {
    match error {
        IdError::Negative => negative_id(value),
        IdError::TooManyBits { bits } => too_many_bits(value, layout, bits),
        IdError::BeforeEpoch => ts_before_epoch(layout),
        IdError::AfterEnd => ts_after_end(layout),
        IdError::Sequence { max } => sequence_too_large(value, layout, max),
        IdError::Node(error) => part_too_large(layout, &error),
    }
}

/// A text that is not an id in this format, or a number that is not an id.
pub fn text(value: &str, format: &str, error: TextError) -> Report {
    match error {
        TextError::Negative => number_without_text(value, &error),
        TextError::Overflow => text_too_large(value, format, &error),
        _ => not_an_id(value, format, &error),
    }
}

fn names<T>(known: &[(&str, T)]) -> String {
    known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn node_hint(field: &str) -> String {
    match settings::has_worker_pool() && field == "worker" {
        true => "Use a layout with more worker bits, or lower first or count of the pool with worker_pool_alter()."
            .to_owned(),
        false => format!(
            "Set idgen.{field}_id to a valid value and restart the server, or use a layout with more {field} bits."
        ),
    }
}
