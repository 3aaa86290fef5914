//! How a later generation of a producer's name begins, so that its ids mean the same events to everyone.
//!
//! Who begins one may die before anything is stored under it. Then others cannot know of it: they go on with the generation
//! before, or begin the same one elsewhere, while the frames of the dead one may still come. So nothing but one event is
//! published before
//!
//! 1. an event is on record as the generation's first (whose, does not matter: from then on nobody who looks goes back),
//! 2. a session has begun after that was known: so this process had the slot then, and whoever has it later looks later;
//! 3. that event, or one before it, is unsettled in that session: nothing that follows it went to another generation.
//!
//! The event that goes out alone needs no other copy. It is looked for like any other, and was stored or was not.

use super::Found;

/// Where the producer's generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Beginning {
    /// Ids mean the same to everyone.
    #[default]
    Over,
    /// Nothing is stored under the name: one event goes out, alone.
    Empty,
    /// It is on its way.
    Sent,
    /// A first event is on record. The session is to be begun anew.
    Recorded,
    /// That session is over.
    Between,
    /// Another one has begun. The first event whose turn it is tells whether to go on.
    Witnessed,
    /// What follows the first event went to another generation. This one is not to be used any more.
    Left,
    /// Others have begun it, while this process settled events under an earlier one.
    Foreign,
}

impl Beginning {
    /// A link is made to a producer of this generation. `before` is where it stood; none where nothing was settled here before,
    /// and [`Foreign`](Self::Foreign) where that was under another name.
    pub(super) const fn link_up(before: Option<Self>, generation: u32, found: Option<&Found>) -> Self {
        match (before, found) {
            // From the first one nobody can go back.
            _ if generation == 0 => Self::Over,
            (_, None) => Self::Empty,
            (Some(Self::Over), Some(_)) => Self::Over,
            (Some(Self::Foreign), Some(_)) => Self::Foreign,
            // Only those who were certain have counted on.
            (None, Some(found)) if found.newest.id > 1 => Self::Over,
            (Some(_), Some(found)) if found.newest.id > 1 => Self::Foreign,
            (Some(Self::Witnessed), Some(_)) => Self::Witnessed,
            (_, Some(_)) => Self::Recorded,
        }
    }

    /// The session is lost. What is on record since only then needs another one that was begun later.
    pub(super) fn session_lost(&mut self) {
        if *self == Self::Recorded {
            *self = Self::Between;
        }
    }

    /// A session has begun.
    pub(super) fn session_started(&mut self) {
        if *self == Self::Between {
            *self = Self::Witnessed;
        }
    }

    /// An event is about to be published or passed over; whether it lies not beyond the newest on record. Returns whether it may.
    pub(super) fn turn(&mut self, is_passed: bool) -> bool {
        if *self == Self::Witnessed {
            *self = if is_passed { Self::Over } else { Self::Left };
        }
        !self.waits()
    }

    /// Whether nothing may be published for now.
    pub(super) const fn waits(self) -> bool {
        !matches!(self, Self::Over | Self::Empty | Self::Witnessed)
    }
}
