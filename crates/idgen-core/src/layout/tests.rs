use super::*;
use proptest::prelude::*;

fn layout(text: &str) -> Layout {
    Layout::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn problem(text: &str) -> String {
    Layout::parse(text).expect_err(text)
}

/// 2026-01-01, inside every preset.
const NOW_MS: i64 = 1_767_225_600_000;

#[test]
fn presets_match_the_published_layouts() {
    let published = [
        ("snowflake", 63, 1, 1_288_834_974_657, 1024, 4_096_000),
        ("twitter", 63, 1, 1_288_834_974_657, 1024, 4_096_000),
        ("sonyflake", 63, 10, 1_409_529_600_000, 65_536, 25_600),
        ("instagram", 63, 1, 1_314_220_021_721, 8192, 1_024_000),
        ("discord", 63, 1, 1_420_070_400_000, 1024, 4_096_000),
        ("tsid", 63, 1, 1_577_836_800_000, 1024, 4_096_000),
        ("pgedge", 63, 1, 1_672_531_200_000, 1024, 4_096_000),
        ("seconds", 63, 1000, 1_262_304_000_000, 1, 4_294_967_296),
        ("js53", 53, 1, 1_577_836_800_000, 8, 512_000),
    ];
    let properties = |(name, _)| {
        let preset = layout(name);
        let (workers, rate) = (preset.workers(), preset.ids_per_second());
        (name, preset.bits(), preset.unit_ms(), preset.epoch_ms(), workers, rate)
    };
    assert_eq!(PRESETS.map(properties), published);
}

/// The example of Discord's reference, "Snowflakes".
#[test]
fn published_discord_id_has_its_published_parts() {
    let id = 175_928_847_299_117_063;
    let (time_ms, node) = (1_462_015_105_796, Node { datacenter: Some(1), worker: 0 });
    let parts = Parts { time_ms, datacenter: node.datacenter, worker: Some(node.worker), tag: None, sequence: 7 };
    assert_eq!(layout("discord").unpack(id), Ok(parts));
    assert_eq!(layout("discord").pack(time_ms, node, 7), Ok(id));
}

#[test]
fn presets_are_written_in_canonical_form() {
    for (name, spec) in PRESETS {
        assert_eq!(layout(name).to_string(), spec);
        assert_eq!(layout(name), layout(spec));
    }
}

#[test]
fn spellings_of_one_layout_are_equal() {
    let canonical = layout("time:41 worker:10 sequence:12 unit:1ms epoch:2018-08-01");
    for other in [
        "time:41 worker:10 sequence:12 epoch:2018-08-01",
        "  epoch:2018-08-01   unit:1ms\ttime:41\nworker:10 sequence:12 ",
        "time:41 worker:10 sequence:12 epoch:2018-08-01T00:00:00Z",
        "time:41 worker:10 sequence:12 epoch:2018-08-01T02:00:00+02:00",
        "time:41 worker:10 sequence:12 epoch:1533081600000ms",
    ] {
        assert_eq!(layout(other), canonical, "{other}");
    }
    assert_eq!(layout("time:31 sequence:32 unit:1000ms epoch:2010-01-01"), layout("seconds"));
}

#[test]
fn invalid_text_is_rejected_at_its_word() {
    let at = |word: &str, problem: &str| format!("At \"{word}\": {problem}.");
    let tail = "unit:1ms epoch:2020-01-01";
    let with = |fields: &str| problem(&format!("{fields} {tail}"));

    assert_eq!(problem(""), "The text is empty.");
    assert_eq!(problem(" \t\n"), "The text is empty.");
    assert_eq!(problem("snowflak"), at("snowflak", "no preset has this name"));
    assert_eq!(problem("Snowflake"), at("Snowflake", "no preset has this name"));
    assert_eq!(problem("snowflake js53"), at("snowflake", "expected name:value"));
    assert_eq!(with("time:41 sequence"), at("sequence", "expected name:value"));
    assert_eq!(with("time:41 sequnce:12"), at("sequnce:12", "unknown word"));
    assert_eq!(with("Time:41 sequence:12"), at("Time:41", "unknown word"));
    assert_eq!(with("sequence:12 time:41"), at("sequence:12", "\"time\" must be the first field"));
    assert_eq!(with("time:41 worker:10 time:12"), at("time:12", "\"time\" must be the first field"));
    assert_eq!(with("time:41 sequence:5 sequence:5"), at("sequence:5", "given twice"));
    assert_eq!(with("time:41 sequence:5 unit:1ms"), at("unit:1ms", "given twice"));
    assert_eq!(with("time:41 sequence:5 epoch:2020-01-01"), at("epoch:2020-01-01", "given twice"));
    assert_eq!(with("time:19 sequence:5"), at("time:19", "this field must have 20 to 62 bits"));
    assert_eq!(with("time:63 sequence:5"), at("time:63", "this field must have 20 to 62 bits"));
    for bits in ["0", "33", "-1", "+1", "1.5", "", "x", "0x10", "99999999999999999999", "١"] {
        let word = format!("sequence:{bits}");
        assert_eq!(with(&format!("time:41 sequence:{bits}")), at(&word, "this field must have 1 to 32 bits"));
    }
    assert_eq!(with("time:20 worker:32 sequence:5"), at("worker:32", "this field must have 1 to 31 bits"));
    assert_eq!(with("time:41 datacenter:0 sequence:5"), at("datacenter:0", "this field must have 1 to 31 bits"));
    assert_eq!(with("time:41 tag:4 sequence:5"), at("tag:4", "expected tag:bits=value"));
    assert_eq!(with("time:41 tag:4=16 sequence:5"), at("tag:4=16", "the value must be 0 to 15"));
    assert_eq!(with("time:41 tag:4=-1 sequence:5"), at("tag:4=-1", "the value must be 0 to 15"));
    assert_eq!(with("time:41 tag:4= sequence:5"), at("tag:4=", "the value must be 0 to 15"));
    for unit in ["0ms", "1001ms", "2s", "0s", "1", "1m", "ms", "s", "-1ms", "1.5ms", "18446744073709551615s"] {
        let word = format!("unit:{unit}");
        assert_eq!(
            problem(&format!("time:41 sequence:12 {word} epoch:2020-01-01")),
            at(&word, "the unit must be 1ms to 1000ms, or 1s")
        );
    }
    for epoch in ["1969-12-31", "10000-01-01", "2020-02-30", "2020", "yesterday", "-1ms", "2020-01-01T00:00:00"] {
        let word = format!("epoch:{epoch}");
        assert_eq!(
            problem(&format!("time:41 sequence:12 {word}")),
            at(&word, "the epoch must be a date or time from 1970 to 9999, or milliseconds since 1970")
        );
    }
    assert_eq!(problem(tail), "The field \"time\" is missing.");
    assert_eq!(with("time:41"), "The field \"sequence\" is missing.");
    assert_eq!(problem("time:41 sequence:12"), "The word \"epoch\" is missing.");
    assert_eq!(with("time:41 datacenter:5 sequence:12"), "The field \"datacenter\" requires a field \"worker\".");
    assert_eq!(with("time:42 worker:10 sequence:12"), "The fields have 64 bits; the maximum is 63.");
}

#[test]
fn floor_and_ceil_enclose_the_ids_of_a_tick() {
    for (name, _) in PRESETS {
        let layout = layout(name);
        let unit_ms = i64::from(layout.unit_ms());
        let inside = layout.pack(NOW_MS, Node::default(), layout.sequence.max()).unwrap();
        assert!(layout.floor(NOW_MS) <= inside && inside <= layout.ceil(NOW_MS), "{name}");
        assert_eq!(layout.ceil(NOW_MS) + 1, layout.floor(NOW_MS + unit_ms), "{name}");
    }
}

#[test]
fn floor_and_ceil_clamp_a_time_outside_of_the_layout() {
    for (name, _) in PRESETS {
        let layout = layout(name);
        let last = layout.floor(layout.ends_at_ms() - 1);
        assert_eq!(layout.floor(i64::MIN), 0, "{name}");
        assert_eq!(layout.floor(layout.epoch_ms() - 1), 0, "{name}");
        assert_eq!(layout.floor(layout.ends_at_ms()), last, "{name}");
        assert_eq!(layout.floor(i64::MAX), last, "{name}");
        assert_eq!(layout.ceil(i64::MAX) as u64, (1 << layout.bits()) - 1, "{name}");
    }
}

#[test]
fn pack_and_unpack_reject_values_outside_of_the_layout() {
    let js53 = layout("js53");
    let pack = |time_ms, sequence| js53.pack(time_ms, Node::default(), sequence);
    assert_eq!(pack(js53.epoch_ms(), 0), Ok(0));
    assert_eq!(pack(js53.epoch_ms() - 1, 0), Err(IdError::BeforeEpoch));
    assert!(pack(js53.ends_at_ms() - 1, 511).is_ok_and(|id| id < 1 << 53));
    assert_eq!(pack(js53.ends_at_ms(), 0), Err(IdError::AfterEnd));
    assert_eq!(pack(NOW_MS, 512), Err(IdError::Sequence { max: 511 }));
    let without_field = NodeError { field: "datacenter", value: 1, max: 0 };
    let node = Node { datacenter: Some(1), worker: 7 };
    assert_eq!(js53.pack(NOW_MS, node, 0), Err(IdError::Node(without_field)));
    assert_eq!(js53.unpack(-1), Err(IdError::Negative));
    assert_eq!(js53.unpack(1 << 53), Err(IdError::TooManyBits { bits: 53 }));
}

/// Each number is another pair, and those of a pool with one worker id for each pair all fit.
#[test]
fn worker_ids_that_number_pairs_fill_both_fields() {
    let twitter = layout("twitter");
    let parts = |worker| {
        let id = twitter.pack(NOW_MS, Node { datacenter: None, worker }, 0).unwrap();
        let parts = twitter.unpack(id).unwrap();
        (parts.datacenter.unwrap(), parts.worker.unwrap())
    };
    assert_eq!([0, 31, 32, 37, 1023].map(parts), [(0, 0), (0, 31), (1, 0), (1, 5), (31, 31)]);
    let too_large = NodeError { field: "worker", value: 1024, max: 1023 };
    assert_eq!(twitter.id_space(Node { datacenter: None, worker: 1024 }), Err(too_large));
    let snowflake = layout("snowflake");
    let numbered = snowflake.id_space(Node { datacenter: None, worker: 700 });
    assert_eq!(numbered, snowflake.id_space(Node { datacenter: Some(9), worker: 700 }), "there is one field");
    assert!(layout("seconds").id_space(Node { datacenter: None, worker: 700 }).is_ok(), "there is none");
}

#[test]
fn end_is_announced_a_year_ahead() {
    let js53 = layout("js53");
    let year_ms = 365 * 86_400_000;
    assert!(!js53.ends_within_a_year(js53.ends_at_ms() - year_ms));
    assert!(js53.ends_within_a_year(js53.ends_at_ms() - year_ms + 1));
    assert!(js53.ends_within_a_year(js53.ends_at_ms() + 1));
}

#[test]
fn times_are_written_as_rfc_3339() {
    assert_eq!([0, 1_767_225_600_001].map(time_text), ["1970-01-01T00:00:00Z", "2026-01-01T00:00:00.001Z"]);
    assert_eq!([-1, 1_000_000].map(time_text_us), ["1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:01Z"]);
    assert_eq!([time_text(i64::MAX), time_text_us(i64::MAX)], ["infinity"; 2]);
}

#[test]
fn times_past_the_last_millisecond_saturate() {
    let far = layout("time:62 sequence:1 unit:1s epoch:9999-12-31");
    assert_eq!(far.ends_at_ms(), i64::MAX);
    assert_eq!(far.unpack(i64::MAX).unwrap().time_ms, i64::MAX);
    assert!(far.pack(i64::MAX, Node::default(), 1).is_ok_and(|id| id > 0));
}

/// Any layout that the rules allow, with the fields below time in any order.
pub(crate) fn any_layout() -> impl Strategy<Value = Layout> {
    let fields = (20u32..=45, 1u32..=12, 1u32..=8, 1u32..=4, 1u32..=4);
    let which = (any::<bool>(), any::<bool>(), any::<bool>());
    let rest = (1u32..=1000, 0i64..=NOW_MS - 20_000_000_000, any::<u32>());
    (fields, which, rest, Just(["datacenter", "worker", "tag", "sequence"]).prop_shuffle()).prop_map(
        |(
            (time, sequence, worker, datacenter, tag),
            (has_worker, has_datacenter, has_tag),
            (unit, epoch, value),
            order,
        )| {
            let mut text = format!("time:{}", time.min(63 - sequence - worker - datacenter - tag));
            for field in order {
                text += &match field {
                    "sequence" => format!(" sequence:{sequence}"),
                    "worker" if has_worker => format!(" worker:{worker}"),
                    "datacenter" if has_worker && has_datacenter => format!(" datacenter:{datacenter}"),
                    "tag" if has_tag => format!(" tag:{tag}={}", value & ((1 << tag) - 1)),
                    _ => String::new(),
                };
            }
            Layout::parse(&format!("{text} unit:{unit}ms epoch:{epoch}ms")).expect(&text)
        },
    )
}

proptest! {
    #[test]
    fn canonical_form_reads_back(layout in any_layout()) {
        prop_assert_eq!(Layout::parse(&layout.to_string()), Ok(layout));
    }

    #[test]
    fn packing_and_unpacking_are_inverse(layout in any_layout(), raw in any::<u64>()) {
        let id = (raw & ((1 << layout.bits()) - 1)) as i64;
        let parts = layout.unpack(id).unwrap();
        let node = Node {
            datacenter: Some(parts.datacenter.unwrap_or(0)),
            worker: parts.worker.unwrap_or(0),
        };
        let packed = layout.pack(parts.time_ms, node, parts.sequence).unwrap();
        // The packed id has the layout's tag, whatever tag the id had.
        let tag_mask = layout.tag.map_or(0, |tag| tag.span.put(tag.span.max()));
        prop_assert_eq!(packed as u64 & !tag_mask, id as u64 & !tag_mask);
        prop_assert_eq!(packed as u64 & tag_mask, layout.tag_bits());
    }

    #[test]
    fn fields_do_not_overlap(layout in any_layout()) {
        let tag = layout.tag.map(|tag| tag.span);
        let spans = [Some(layout.time), Some(layout.sequence), layout.worker, layout.datacenter, tag];
        let masks: Vec<u64> = spans.into_iter().flatten().map(|s| s.put(s.max())).collect();
        prop_assert_eq!(masks.iter().map(|m| m.count_ones()).sum::<u32>(), layout.bits());
        prop_assert_eq!(masks.iter().fold(0, |all, m| all | m), (1 << layout.bits()) - 1);
    }

    #[test]
    fn parse_never_panics(text in ".*") {
        let _ = Layout::parse(&text);
    }

    #[test]
    fn parse_never_panics_on_known_words(
        text in "((time|sequence|worker|tag|unit|epoch)[:=]?[0-9]{0,4}(ms|s|=[0-9]{1,12})? ?){0,8}",
    ) {
        let _ = Layout::parse(&text);
    }
}
