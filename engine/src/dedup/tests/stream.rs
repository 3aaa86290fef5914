//! The broker's side: what is under way to it, and what it has stored.

use std::collections::{BTreeMap, VecDeque};

use super::super::{COUNTED, UNCOUNTED};
use super::world::event_at;
use crate::Lsn;

/// A frame under way.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) producer: Option<String>,
    pub(super) id: u64,
    pub(super) message: Vec<u8>,
}

/// Frames of one connection that the broker has not taken yet; after the connection's end it may still take some.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) frames: VecDeque<Sent>,
    pub(super) confirms: VecDeque<(u8, u64)>,
    /// One was lost on the way, while later ones were taken.
    pub(super) is_holed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) messages: Vec<(Option<String>, Vec<u8>)>,
    pub(super) highest: BTreeMap<String, u64>,
    /// How often each event was stored, those that were truncated since included.
    pub(super) stored: BTreeMap<u64, u32>,
}

impl Stream {
    pub(super) fn take(&mut self, sent: Sent) -> (u8, u64) {
        let publisher = match &sent.producer {
            Some(name) => {
                let highest = self.highest.entry(name.clone()).or_default();
                if sent.id <= *highest {
                    return (COUNTED, sent.id);
                }
                *highest = sent.id;
                COUNTED
            }
            None => UNCOUNTED,
        };
        let mark = crate::amqp::mark_of(&sent.message).expect("a mark");
        let numbers: Vec<u64> = mark[1..]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|n| u64::from_be_bytes(*n))
            .collect();
        let event = event_at((Lsn::new(numbers[4]), numbers[5]));
        *self.stored.entry(event).or_default() += 1;
        self.messages.push((sent.producer, sent.message));
        (publisher, sent.id)
    }
}
