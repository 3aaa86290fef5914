//! A second reading of the stream, for what the first has not brought: was it not stored, or not read?

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;
use walrelay_testbed::{StreamReader, Vhost};

use crate::history::Entry;
use crate::journal::entry;

/// Reads from the stream's beginning, and keeps nothing but what it has not found yet.
#[derive(Debug)]
pub(crate) struct Search {
    read: Arc<Mutex<Read>>,
    _reader: StreamReader,
}

#[derive(Debug)]
struct Read {
    missing: HashSet<Uuid>,
    count: u64,
    is_over: bool,
}

impl Search {
    /// Begins to read; the search is over with a mark that was known then, or later.
    pub(crate) fn start(vhost: &Vhost, stream: &str, missing: HashSet<Uuid>, until: Duration) -> Search {
        let read = Arc::new(Mutex::new(Read {
            missing,
            count: 0,
            is_over: false,
        }));
        let reading = read.clone();
        let reader = StreamReader::start(vhost, stream, move |stored| {
            let mut read = reading.lock().unwrap_or_else(PoisonError::into_inner);
            read.count += 1;
            match entry(&stored, Duration::ZERO) {
                Ok(Entry::Delivery(delivery)) => drop(read.missing.remove(&delivery.id)),
                Ok(Entry::Mark(mark)) => read.is_over |= mark.known >= until,
                // The first reading has complained of it.
                Err(_) => {}
            }
        });
        Search {
            read,
            _reader: reader,
        }
    }

    /// How many messages it has read.
    pub(crate) fn count(&self) -> u64 {
        self.with(|read| read.count)
    }

    /// Whether it has come to the end.
    pub(crate) fn is_over(&self) -> bool {
        self.with(|read| read.is_over)
    }

    /// What it has not found.
    pub(crate) fn missing(&self) -> HashSet<Uuid> {
        self.with(|read| read.missing.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&Read) -> T) -> T {
        look(&self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
