//! A text of fixed size, for shared memory.

#[derive(Clone, Copy)]
pub struct FixedText<const N: usize> {
    length: usize,
    bytes: [u8; N],
}

impl<const N: usize> Default for FixedText<N> {
    fn default() -> Self {
        Self { length: 0, bytes: [0; N] }
    }
}

impl<const N: usize> FixedText<N> {
    /// Keeps as much of the text as there is room for, in whole characters.
    pub fn set(&mut self, text: &str) {
        self.length = text.floor_char_boundary(N);
        self.bytes[..self.length].copy_from_slice(&text.as_bytes()[..self.length]);
    }

    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub fn is_clear(&self) -> bool {
        self.length == 0
    }

    /// `None` when there is none.
    pub fn text(&self) -> Option<String> {
        (!self.is_clear()).then(|| String::from_utf8_lossy(&self.bytes[..self.length]).into_owned())
    }
}
