use super::*;
use proptest::prelude::*;

const ALPHABET: &str = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ";

fn secret() -> [u8; SECRET_BYTES] {
    std::array::from_fn(|index| index as u8)
}

fn keyring(prefix: &str, form: Form, secret: [u8; SECRET_BYTES]) -> Keyring {
    Keyring::new(prefix, &[(form, secret)]).unwrap()
}

#[test]
fn known_ids_have_known_texts() {
    let (short, long) = (keyring("ord", Form::Short, secret()), keyring("ord", Form::Long, secret()));
    for (id, masked, short_text, long_text) in [
        (0, 5_989_119_989_971_696_420, "ord_eUjXdnVU7xW", "ord_c6szXY8m2WZ7pbrdM2JsWQ"),
        (1, 8_129_597_295_730_760_601, "ord_jSvceAeDoUz", "ord_ahtwxLFvtKfrABXFQDRvjt"),
        (i64::MAX, 791_020_051_488_303_708, "ord_2QuNpqi7rZN", "ord_7g85RoCAvob6tgxwmP29Py"),
    ] {
        assert_eq!(short.mask(id), Ok(masked));
        assert_eq!(short.unmask(masked), Ok(id));
        assert_eq!(short.encode(id).as_deref(), Ok(short_text));
        assert_eq!(long.encode(id).as_deref(), Ok(long_text));
        assert_eq!([short.decode(short_text), long.decode(long_text)], [Ok(id), Ok(id)]);
    }
    assert_eq!(keyring("usr", Form::Short, secret()).mask(1), Ok(5_733_542_033_166_122_805));
}

#[test]
fn negative_number_is_no_id() {
    for form in Form::ALL {
        let keys = keyring("ord", form, secret());
        for number in [-1, i64::MIN] {
            assert_eq!(keys.encode(number), Err(PublicIdError::Negative));
            assert_eq!([keys.mask(number), keys.unmask(number)], [(); 2].map(|()| Err(PublicIdError::Negative)));
        }
    }
}

#[test]
fn text_of_another_shape_is_refused() {
    let short = keyring("ord", Form::Short, secret());
    let wrong = [
        ("", PublicIdError::Prefix("ord_".into())),
        ("eUjXdnVU7xW", PublicIdError::Prefix("ord_".into())),
        ("ORD_eUjXdnVU7xW", PublicIdError::Prefix("ord_".into())),
        (" ord_eUjXdnVU7xW", PublicIdError::Prefix("ord_".into())),
        ("ord_", PublicIdError::Length(0)),
        ("ord_eUjXdnVU7x", PublicIdError::Length(10)),
        ("ord_1eUjXdnVU7xW", PublicIdError::Length(12)),
        ("ord_eUjXdnVU7xW ", PublicIdError::Length(12)),
        ("ord_0UjXdnVU7xW", PublicIdError::Character('0')),
        ("ord_eUjXdnVU7xO", PublicIdError::Character('O')),
        ("ord_eUjXdnVU7xé", PublicIdError::Character('é')),
        ("ord_山UjXdnVU7xW", PublicIdError::Character('山')),
        // The base64 and hexadecimal alphabets.
        ("ord_eUjXdnVU7x+", PublicIdError::Character('+')),
        ("ord_0000000000f", PublicIdError::Character('0')),
        // The greatest number of this width, which has 65 bits.
        ("ord_ZZZZZZZZZZZ", PublicIdError::NotMade),
        // A text of the long form, of 129 bits too.
        ("ord_c6szXY8m2WZ7pbrdM2JsWQ", PublicIdError::NotMade),
        ("ord_ZZZZZZZZZZZZZZZZZZZZZZ", PublicIdError::NotMade),
    ];
    for (text, error) in wrong {
        assert_eq!(short.decode(text), Err(error), "{text:?}");
    }
    let long = keyring("ord", Form::Long, secret());
    for text in ["ord_ZZZZZZZZZZZZZZZZZZZZZZ", "ord_1111111111111111111111", "ord_eUjXdnVU7xW"] {
        assert_eq!(long.decode(text), Err(PublicIdError::NotMade), "{text:?}");
    }
}

#[test]
fn short_text_has_a_number_of_at_most_63_bits() {
    let keys = keyring("ord", Form::Short, secret());
    let text = |number: u64| {
        let mut text = "ord_".to_owned();
        base58::push(&mut text, number.into(), 11);
        text
    };
    assert_eq!(text(0), "ord_11111111111");
    assert!(keys.decode(&text(0)).is_ok_and(|id| keys.encode(id) == Ok(text(0))));
    assert!(keys.decode(&text(i64::MAX as u64)).is_ok_and(|id| keys.mask(id) == Ok(i64::MAX)));
    assert_eq!(keys.decode(&text(1 << 63)), Err(PublicIdError::NotMade));
    assert_eq!(keys.decode(&text(u64::MAX)), Err(PublicIdError::NotMade));
}

/// The opened block has zeros, but no id of 63 bits in front of them.
#[test]
fn long_text_of_an_id_above_63_bits_is_refused() {
    let keys = keyring("ord", Form::Long, secret());
    let Cipher::Long(cipher) = &keys.newest else { unreachable!("of the long form") };
    let mut text = "ord_".to_owned();
    base58::push(&mut text, seal(cipher, 1 << 63), 22);
    assert_eq!(keys.decode(&text), Err(PublicIdError::NotMade));
}

#[test]
fn prefixes_are_lower_case_words() {
    let longest = "a".repeat(MAX_PREFIX_BYTES);
    for prefix in ["o", "ord", "sk_live", "a__b", "a1", &longest] {
        assert!(is_valid_prefix(prefix), "{prefix:?}");
    }
    let too_long = "a".repeat(MAX_PREFIX_BYTES + 1);
    for prefix in ["", "_", "_a", "a_", "1a", "Ord", "ö", "a-b", "a b", "a\n", "a\0", "山", &too_long] {
        assert!(!is_valid_prefix(prefix), "{prefix:?}");
    }
}

/// Prefixes may have an underscore, so one can be the beginning of another.
#[test]
fn prefix_of_a_prefix_does_not_decode_its_text() {
    let [sk, sk_live] = ["sk", "sk_live"].map(|prefix| keyring(prefix, Form::Short, secret()));
    assert!(sk.decode(&sk_live.encode(7).unwrap()).is_err());
    assert!(sk_live.decode(&sk.encode(7).unwrap()).is_err());
}

#[test]
fn rotation_never_gives_a_prefix_two_short_keys() {
    let key = |version, form, is_retired| KeyState { version, form, is_retired };
    let short = [key(1, Form::Short, false)];
    assert_eq!(next_key(&short, None), Err(RotationError::SecondShortKey(1)));
    let last = [KeyState { version: 1_000_000_000, form: Form::Long, is_retired: false }];
    assert_eq!(next_key(&last, None), Err(RotationError::NoMoreVersions));
    assert_eq!(next_key(&short, Some(Form::Short)), Err(RotationError::SecondShortKey(1)));
    assert_eq!(next_key(&short, Some(Form::Long)), Ok((2, Form::Long)));
    let rotated = [key(2, Form::Long, false), key(1, Form::Short, true)];
    assert_eq!(next_key(&rotated, None), Ok((3, Form::Long)));
    assert_eq!(next_key(&rotated, Some(Form::Short)), Err(RotationError::SecondShortKey(1)), "retired, and in use");
    assert_eq!(next_key(&[key(1, Form::Long, false)], Some(Form::Short)), Ok((2, Form::Short)));
}

/// Otherwise ids would be masked on by the key that the rotation replaced.
#[test]
fn only_a_newest_key_of_the_short_form_masks() {
    let keys = [(Form::Long, [1; SECRET_BYTES]), (Form::Short, secret())];
    let (rotated, retired) = (Keyring::new("ord", &keys).unwrap(), Keyring::new("ord", &keys[..1]).unwrap());
    assert_eq!(rotated.mask(1), Err(PublicIdError::NoShortKey));
    assert_eq!(rotated.unmask(8_129_597_295_730_760_601), Ok(1));
    assert_eq!(retired.unmask(8_129_597_295_730_760_601), Err(PublicIdError::NoShortKey));
    assert_eq!(rotated.decode("ord_jSvceAeDoUz"), Ok(1));
    assert_eq!(retired.decode("ord_jSvceAeDoUz"), Err(PublicIdError::NotMade));
    assert!(Keyring::new("ord", &[]).is_none());
}

#[test]
fn newest_key_is_never_retired() {
    let key = |version, is_retired| KeyState { version, form: Form::Long, is_retired };
    let keys = [key(1, true), key(3, false), key(2, false)];
    assert_eq!(retire(&keys, 1), Ok(false));
    assert_eq!(retire(&keys, 2), Ok(true));
    assert_eq!(retire(&keys, 3), Err(RotationError::Newest(3)));
    assert_eq!(retire(&keys, 4), Err(RotationError::UnknownVersion(4)));
}

fn any_form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Short), Just(Form::Long)]
}

/// Ids of all magnitudes.
fn any_id() -> impl Strategy<Value = i64> {
    (0..=i64::MAX, 0u32..63).prop_map(|(id, bits)| id >> bits)
}

proptest! {
    // Blowfish's schedule takes longer in a debug build than the rest of a case.
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn decoding_returns_the_encoded_id(secret: [u8; SECRET_BYTES], form in any_form(), id in any_id()) {
        let keys = keyring("ord", form, secret);
        let text = keys.encode(id).unwrap();
        prop_assert_eq!(text.len(), 4 + form.width());
        prop_assert_eq!(keys.decode(&text), Ok(id));
    }

    #[test]
    fn masked_number_is_an_id_that_unmasks_to_its_own(secret: [u8; SECRET_BYTES], id in any_id()) {
        let keys = keyring("ord", Form::Short, secret);
        let masked = keys.mask(id).unwrap();
        prop_assert!(masked >= 0);
        prop_assert_eq!(keys.unmask(masked), Ok(id));
    }

    /// One character that differs: the long form refuses it, and the short form never returns what is no id.
    #[test]
    fn changed_character_is_refused_or_is_an_id_of_its_own(
        secret: [u8; SECRET_BYTES], form in any_form(), id in any_id(), place: prop::sample::Index, by in 1usize..58,
    ) {
        let keys = keyring("ord", form, secret);
        let mut text = keys.encode(id).unwrap().into_bytes();
        let place = 4 + place.index(form.width());
        let digit = ALPHABET.bytes().position(|digit| digit == text[place]).unwrap();
        text[place] = ALPHABET.as_bytes()[(digit + by) % ALPHABET.len()];
        let text = String::from_utf8(text).unwrap();
        match (form, keys.decode(&text)) {
            (_, Err(error)) => prop_assert_eq!(error, PublicIdError::NotMade),
            (Form::Long, Ok(other)) => prop_assert!(false, "{} decodes to {}", text, other),
            (Form::Short, Ok(other)) => {
                prop_assert!(other >= 0 && other != id);
                prop_assert_eq!(keys.encode(other).unwrap(), text);
            }
        }
    }

    /// Also under the same secret: the key depends on the prefix.
    #[test]
    fn another_key_or_prefix_never_returns_the_id(
        secret: [u8; SECRET_BYTES], other: [u8; SECRET_BYTES], form in any_form(), id in any_id(),
    ) {
        prop_assume!(secret != other);
        let text = keyring("ord", form, secret).encode(id).unwrap();
        let under = |prefix: &str, secret| {
            let text = text.replace("ord_", &format!("{prefix}_"));
            keyring(prefix, form, secret).decode(&text)
        };
        for result in [under("ord", other), under("usr", secret)] {
            match form {
                Form::Long => prop_assert_eq!(result, Err(PublicIdError::NotMade)),
                Form::Short => prop_assert!(result.is_ok_and(|other| other != id)),
            }
        }
        prop_assert!(matches!(keyring("usr", form, secret).decode(&text), Err(PublicIdError::Prefix(_))));
    }

    /// Texts of every key that a prefix had go on decoding, and to the ids that they were made from.
    #[test]
    fn texts_decode_over_rotations(secrets: [[u8; SECRET_BYTES]; 3], short_at in 0usize..4, ids in [any_id(), any_id(), any_id()]) {
        let mut keys = Vec::new();
        let mut texts = Vec::new();
        for (index, id) in ids.into_iter().enumerate() {
            keys.insert(0, (if index == short_at { Form::Short } else { Form::Long }, secrets[index]));
            texts.push((Keyring::new("ord", &keys).unwrap().encode(id).unwrap(), id));
            let now = Keyring::new("ord", &keys).unwrap();
            for (text, id) in &texts {
                prop_assert_eq!(now.decode(text), Ok(*id));
            }
        }
    }

    #[test]
    fn any_text_is_refused_or_is_what_its_id_encodes_to(text in "(ord_)?[1-9A-Za-zé山]{9,24}", form in any_form()) {
        let keys = keyring("ord", form, secret());
        if let Ok(id) = keys.decode(&text) {
            prop_assert!(id >= 0);
            prop_assert_eq!(keys.encode(id).unwrap(), text);
        }
    }
}
