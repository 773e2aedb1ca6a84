use super::*;
use proptest::prelude::*;

fn format(name: &str) -> Format {
    Format::named(name).unwrap()
}

#[test]
fn errors_say_what_the_format_refuses() {
    let said = |text: &str, format: &str| self::format(format).decode(text).unwrap_err().to_string();
    assert_eq!(said("102", "base2"), "The format has no character \"2\".");
    assert_eq!(said("1", "sort62"), "A text of this format has 11 characters.");
}

/// Formats that bwmarrin/snowflake has: the texts from its test data and code.
#[test]
fn known_ids_have_known_texts() {
    let texts = [
        ("base2", 13, "1101"),
        ("base32", 31, "9"),
        ("base32", 32, "by"),
        ("base36", 35, "z"),
        ("base36", 36, "10"),
        ("base58", 57, "Z"),
        ("base58", 58, "21"),
        ("base62", 61, "z"),
        ("base62", 62, "10"),
        ("base64", 116_823_110_988_447_745, "MTE2ODIzMTEwOTg4NDQ3NzQ1"),
        ("hex", 255, "ff"),
        ("sort32", 0, "0000000000000"),
        ("sort32", 32, "0000000000010"),
        ("sort62", 61, "0000000000z"),
        ("base62", i64::MAX, "AzL8n0Y58m7"),
        ("sort62", i64::MAX, "AzL8n0Y58m7"),
        ("sort32", i64::MAX, "7ZZZZZZZZZZZZ"),
        ("hex", i64::MAX, "7fffffffffffffff"),
    ];
    for (name, id, text) in texts {
        assert_eq!(format(name).encode(id).as_deref(), Ok(text), "{name} {id}");
        assert_eq!(format(name).decode(text), Ok(id), "{name} {text}");
    }
}

#[test]
fn decode_rejects_texts_that_encode_does_not_write() {
    for (name, _) in FORMATS {
        assert_eq!(format(name).encode(-1), Err(TextError::Negative), "{name}");
        for wrong in ["", " ", "-1", "1 ", " 1", "+1", "é", "0x1", "=", "\0", "1\n"] {
            assert!(format(name).decode(wrong).is_err(), "{name} {wrong:?}");
        }
    }
    assert_eq!(Format::named("BASE62"), None);
    assert_eq!(format("base2").decode("102"), Err(TextError::Character('2')));
    assert_eq!(format("base32").decode("yl"), Err(TextError::Character('l')));
    assert_eq!(format("base36").decode("Z"), Err(TextError::Character('Z')));
    assert_eq!(format("base58").decode("10"), Err(TextError::Character('0')));
    assert_eq!(format("hex").decode("FF"), Err(TextError::Character('F')));
    assert_eq!(format("sort32").decode("000000000000I"), Err(TextError::Character('I')));
    assert_eq!(format("sort62").decode("1"), Err(TextError::Width { width: 11 }));
    assert_eq!(format("sort32").decode("00000000000000"), Err(TextError::Width { width: 13 }));
    assert_eq!(format("base36").decode("01"), Err(TextError::LeadingZero));
    assert_eq!(format("base58").decode("12"), Err(TextError::LeadingZero));
    assert_eq!(format("hex").decode("8000000000000000"), Err(TextError::Overflow));
    assert_eq!(format("sort62").decode("zzzzzzzzzzz"), Err(TextError::Overflow));
    assert_eq!(format("sort32").decode("8000000000000"), Err(TextError::Overflow));
    // Base64 of a text, of a number with a leading zero, and of a number that is too large.
    assert_eq!(format("base64").decode("YWJj"), Err(TextError::NotBase64));
    assert_eq!(format("base64").decode("MDE="), Err(TextError::NotBase64));
    assert_eq!(format("base64").decode("MTE2"), Ok(116));
    assert_eq!(format("base64").decode(&STANDARD.encode("9223372036854775808")), Err(TextError::Overflow));
}

fn any_format() -> impl Strategy<Value = Format> {
    prop::sample::select(FORMATS.map(|(_, format)| format).to_vec())
}

proptest! {
    #[test]
    fn every_id_reads_back_in_every_format(format in any_format(), id in 0..=i64::MAX) {
        prop_assert_eq!(format.decode(&format.encode(id).unwrap()), Ok(id));
    }

    #[test]
    fn accepted_text_is_the_only_text_of_its_id(format in any_format(), text in "[0-9A-Za-z+/=]{1,14}") {
        if let Ok(id) = format.decode(&text) {
            prop_assert_eq!(format.encode(id), Ok(text));
        }
    }

    #[test]
    fn decode_never_panics(format in any_format(), text in ".*") {
        let _ = format.decode(&text);
    }

    #[test]
    fn texts_of_sort32_and_sort62_sort_as_their_ids(a in 0..=i64::MAX, b in 0..=i64::MAX) {
        for name in ["sort32", "sort62"] {
            let (text_a, text_b) = (format(name).encode(a).unwrap(), format(name).encode(b).unwrap());
            prop_assert_eq!(a.cmp(&b), text_a.as_bytes().cmp(text_b.as_bytes()));
        }
    }
}
