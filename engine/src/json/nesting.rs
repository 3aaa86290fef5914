//! The brackets that are open at a place in a text.

/// How deep arrays and objects may stand in one another where they are only passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depth {
    /// Brackets that may be open, no more than [`MOST`].
    pub(super) most: usize,
    /// What a fault says is expected where there are more.
    pub(super) expected: &'static str,
}

impl Depth {
    /// Of a value in a logical message. PostgreSQL's own limit lies at some thousands, those of most parsers far lower.
    pub(crate) const MESSAGE: Self = Self {
        most: MOST,
        expected: "no more than 1024 brackets within one another",
    };

    /// Of a text that becomes part of another document, which its readers have to take as a whole.
    pub(crate) const DOCUMENT: Self = Self {
        most: 256,
        expected: "no more than 256 brackets within one another",
    };
}

/// The most brackets that there is room for.
const MOST: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bracket {
    Array,
    Object,
}

impl Bracket {
    /// The bracket that ends it.
    pub(super) const fn close(self) -> u8 {
        match self {
            Self::Array => b']',
            Self::Object => b'}',
        }
    }
}

/// Open brackets, one bit each.
#[derive(Debug)]
pub(super) struct Nesting {
    depth: usize,
    objects: [u64; MOST / 64],
}

impl Default for Nesting {
    fn default() -> Self {
        Self {
            depth: 0,
            objects: [0; MOST / 64],
        }
    }
}

impl Nesting {
    /// `None` where there would be more than `most`.
    pub(super) fn push(&mut self, bracket: Bracket, most: usize) -> Option<()> {
        if self.depth >= most {
            return None;
        }
        let bit = 1 << (self.depth % 64);
        let objects = self.objects.get_mut(self.depth / 64)?;
        match bracket {
            Bracket::Object => *objects |= bit,
            Bracket::Array => *objects &= !bit,
        }
        self.depth += 1;
        Some(())
    }

    pub(super) fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    pub(super) fn innermost(&self) -> Option<Bracket> {
        let place = self.depth.checked_sub(1)?;
        let objects = self.objects.get(place / 64)?;
        Some(match objects & 1 << (place % 64) {
            0 => Bracket::Array,
            _ => Bracket::Object,
        })
    }
}
