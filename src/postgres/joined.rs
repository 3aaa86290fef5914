//! Several things in one line.

use std::fmt;

/// Prints a list, separated by semicolons.
pub(super) struct Joined<'a, T>(pub(super) &'a [T]);

impl<T: fmt::Display> fmt::Display for Joined<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{item}")?;
        }
        Ok(())
    }
}
