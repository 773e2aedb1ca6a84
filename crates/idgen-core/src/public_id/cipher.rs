//! The ciphers that turn an id into the number of a text, and back: one for each form.

use super::{Form, SECRET_BYTES};
use aes::Aes256;
use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use blowfish::Blowfish;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// A key with its schedule, which takes longer to set up than thousands of texts to make.
pub enum Cipher {
    Short(Box<Blowfish>),
    Long(Box<Aes256>),
}

impl Cipher {
    pub fn new(prefix: &str, form: Form, secret: &[u8; SECRET_BYTES]) -> Self {
        const ANY_LENGTH: &str = "the length is one that the algorithm accepts";
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret).expect(ANY_LENGTH);
        mac.update(format!("idgen mask 1 {} {prefix}", form.name()).as_bytes());
        let key = mac.finalize().into_bytes();
        match form {
            Form::Short => Self::Short(Box::new(KeyInit::new_from_slice(&key[..16]).expect(ANY_LENGTH))),
            Form::Long => Self::Long(Box::new(KeyInit::new_from_slice(&key).expect(ANY_LENGTH))),
        }
    }

    pub fn form(&self) -> Form {
        match self {
            Self::Short(_) => Form::Short,
            Self::Long(_) => Form::Long,
        }
    }
}

/// Encrypts until the result has 63 bits. That is a permutation of the numbers of 63 bits.
pub fn mask(cipher: &Blowfish, id: u64) -> u64 {
    walk(id, |block| cipher.encrypt_block(block))
}

pub fn unmask(cipher: &Blowfish, masked: u64) -> u64 {
    walk(masked, |block| cipher.decrypt_block(block))
}

fn walk(mut number: u64, step: impl Fn(&mut Block<Blowfish>)) -> u64 {
    loop {
        let mut block = number.to_be_bytes().into();
        step(&mut block);
        number = u64::from_be_bytes(block.into());
        if i64::try_from(number).is_ok() {
            return number;
        }
    }
}

pub fn seal(cipher: &Aes256, id: u64) -> u128 {
    let mut block = (u128::from(id) << 64).to_be_bytes().into();
    cipher.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

/// The id in a block; `None` if another key made the block, or none.
pub fn open(cipher: &Aes256, sealed: u128) -> Option<i64> {
    let mut block = sealed.to_be_bytes().into();
    cipher.decrypt_block(&mut block);
    let opened = u128::from_be_bytes(block.into());
    // One comparison of a word, so its time says nothing about the bits.
    (opened as u64 == 0).then(|| i64::try_from((opened >> 64) as u64).ok()).flatten()
}
