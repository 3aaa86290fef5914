//! The requests for retries that are not settled, and what has become of each.

use std::collections::{HashSet, VecDeque};

use super::{RetryFailure, RetryToken};
use crate::Lsn;
use crate::amqp::Message;
use crate::key::{EventKey, TransactionKey};
use crate::ledger::TransactionNo;
use crate::marks::TableNo;

/// Requests kept; the stream waits behind more.
pub(in crate::flow) const MAX_REQUESTS: usize = 16 * 1024;

/// Dead letters that are loaded and not settled, at most.
pub(in crate::flow) const MAX_ACTIVE: usize = 256;

/// Bytes of messages of dead letters above which no further one is loaded.
const MAX_ACTIVE_BYTES: usize = 4 * 1024 * 1024;

/// The requests that are not settled, oldest first, so by rising token.
#[derive(Debug, Default)]
pub(in crate::flow) struct Retries {
    requests: VecDeque<Request>,
    next_token: RetryToken,
    counts: Counts,
}

/// How many requests are in which state, and what they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    wanted: usize,
    ready: usize,
    sent: usize,
    over: usize,
    suspects: usize,
    /// In no session's ledger.
    detached: usize,
    /// Bytes of messages.
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) token: RetryToken,
    origin: Origin,
    /// Its transaction in the current session's ledger; none while no session has brought it again.
    pub(super) transaction: Option<TransactionNo>,
    pub(super) step: Step,
}

/// The logical message: the same one if a new session brings it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) transaction: TransactionKey,
    pub(super) lsn: Lsn,
}

#[derive(Debug)]
pub(super) enum Step {
    /// Nobody has said what it means.
    Unsorted(Vec<u8>),
    /// It asks for this dead letter.
    Wanted((Lsn, u64)),
    /// Its dead letter is loaded.
    Active(Box<Active>),
}

#[derive(Debug)]
pub(super) struct Active {
    pub(super) key: EventKey,
    pub(super) event_id: Option<String>,
    /// Its table, if that is still configured.
    pub(super) table: Option<TableNo>,
    pub(super) message: Option<Message>,
    /// The broker closed while it was outstanding with others: it is sent alone, to see whether it was the one.
    pub(super) is_suspect: bool,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Ready,
    Sent,
    Over(Option<RetryFailure>),
}

impl Retries {
    pub(in crate::flow) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= MAX_REQUESTS
    }

    /// Whether a message is out, or what came of one is not recorded.
    pub(in crate::flow) const fn is_in_flight(&self) -> bool {
        self.counts.sent + self.counts.over > 0
    }

    pub(in crate::flow) fn clear(&mut self) {
        self.requests.clear();
        self.counts = Counts::default();
    }

    /// The next session brings the requests again. What is out stays: its answer is still to come.
    pub(in crate::flow) fn session_lost(&mut self) {
        self.requests.retain(Request::is_in_flight);
        for request in &mut self.requests {
            request.transaction = None;
        }
        self.recount();
    }

    /// What was sent counts as unsent.
    pub(in crate::flow) fn link_lost(&mut self) {
        self.each_sent(|active| active.state = State::Ready);
    }

    /// The broker closed while several messages were outstanding, those that were sent perhaps among them.
    pub(in crate::flow) fn suspect(&mut self) {
        self.each_sent(|active| active.is_suspect = true);
    }

    /// Takes a request, or recognises one that is under way.
    pub(super) fn take(&mut self, origin: Origin, transaction: TransactionNo, content: &[u8]) {
        if self.counts.detached > 0 {
            let known = self
                .requests
                .iter_mut()
                .find(|request| request.transaction.is_none() && request.origin == origin);
            if let Some(request) = known {
                request.transaction = Some(transaction);
                self.counts.detached -= 1;
                return;
            }
        }
        self.requests.push_back(Request {
            token: self.next_token,
            origin,
            transaction: Some(transaction),
            step: Step::Unsorted(content.to_vec()),
        });
        self.next_token += 1;
    }

    /// The newest request.
    pub(super) fn newest(&self) -> Option<&Request> {
        self.requests.back()
    }

    /// A request whose dead letter is loaded.
    pub(super) fn active(&self, token: RetryToken) -> Option<&Active> {
        self.requests.get(self.index(token)?)?.active()
    }

    /// Changes a request; `change` says whether it did.
    pub(super) fn change(&mut self, token: RetryToken, change: impl FnOnce(&mut Request) -> bool) -> bool {
        let index = self.index(token);
        let Some(request) = index.and_then(|index| self.requests.get_mut(index)) else {
            return false;
        };
        let before = request.counts();
        let has_changed = change(request);
        let after = request.counts();
        self.counts.replace(before, after);
        has_changed
    }

    pub(super) fn remove(&mut self, token: RetryToken) -> Option<Request> {
        let request = self.requests.remove(self.index(token)?)?;
        self.counts.replace(request.counts(), Counts::default());
        Some(request)
    }

    /// How many bytes of messages may be loaded; none where no further dead letter may be. One whose event is under way for
    /// an older request waits for that, and what comes after it too.
    pub(super) fn room(&self) -> Option<usize> {
        let Counts {
            wanted,
            ready,
            sent,
            over,
            bytes,
            ..
        } = self.counts;
        if wanted == 0 || ready + sent + over >= MAX_ACTIVE {
            return None;
        }
        let (_, position) = self.wanted().next()?;
        let room = MAX_ACTIVE_BYTES.saturating_sub(bytes);
        (room > 0 && !self.active_positions().any(|active| active == position)).then_some(room)
    }

    /// The requests whose dead letters may be loaded now, each for another event.
    pub(super) fn to_load(&self) -> Vec<(RetryToken, (Lsn, u64))> {
        if self.room().is_none() {
            return Vec::new();
        }
        let mut positions: HashSet<_> = self.active_positions().collect();
        let count = MAX_ACTIVE.saturating_sub(positions.len());
        self.wanted()
            .take(count)
            .take_while(|(_, position)| positions.insert(*position))
            .collect()
    }

    /// Whether this request is the oldest whose dead letter is not loaded.
    pub(super) fn is_next_to_load(&self, token: RetryToken) -> bool {
        self.wanted().next().is_some_and(|(oldest, _)| oldest == token)
    }

    /// The requests that are over and not on record.
    pub(super) fn over(&self) -> impl Iterator<Item = (RetryToken, &Active)> {
        self.all_active()
            .take(if self.counts.over == 0 { 0 } else { usize::MAX })
            .filter(|(_, active)| matches!(active.state, State::Over(_)))
    }

    pub(super) const fn has_over(&self) -> bool {
        self.counts.over > 0
    }

    /// Whether a message is out that was to be sent alone.
    pub(super) fn is_suspect_out(&self) -> bool {
        self.counts.suspects > 0
            && self
                .all_active()
                .any(|(_, active)| active.is_suspect && active.is_sent())
    }

    /// The message that is next to be sent: suspects first.
    pub(super) fn next_ready(&self) -> Option<(RetryToken, &Active)> {
        if self.counts.ready == 0 {
            return None;
        }
        let ready = || {
            self.all_active()
                .filter(|(_, active)| matches!(active.state, State::Ready))
        };
        let suspect = match self.counts.suspects {
            0 => None,
            _ => ready().find(|(_, active)| active.is_suspect),
        };
        suspect.or_else(|| ready().next())
    }

    /// The request whose message with these headers was sent.
    pub(in crate::flow) fn sent(&self, position: (Lsn, u64)) -> Option<RetryToken> {
        if self.counts.sent == 0 {
            return None;
        }
        self.all_active()
            .find(|(_, active)| active.is_sent() && active.key.position() == position)
            .map(|(token, _)| token)
    }

    fn wanted(&self) -> impl Iterator<Item = (RetryToken, (Lsn, u64))> {
        self.requests.iter().filter_map(|request| match &request.step {
            Step::Wanted(position) => Some((request.token, *position)),
            Step::Unsorted(_) | Step::Active(_) => None,
        })
    }

    /// They stand before all others: [`is_next_to_load`](Self::is_next_to_load).
    fn all_active(&self) -> impl Iterator<Item = (RetryToken, &Active)> {
        self.requests
            .iter()
            .map_while(|request| Some((request.token, request.active()?)))
    }

    fn active_positions(&self) -> impl Iterator<Item = (Lsn, u64)> {
        self.all_active().map(|(_, active)| active.key.position())
    }

    fn each_sent(&mut self, change: impl Fn(&mut Active)) {
        if self.counts.sent == 0 {
            return;
        }
        for request in &mut self.requests {
            if let Step::Active(active) = &mut request.step
                && active.is_sent()
            {
                change(active);
            }
        }
        self.recount();
    }

    fn index(&self, token: RetryToken) -> Option<usize> {
        self.requests
            .binary_search_by_key(&token, |request| request.token)
            .ok()
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut counts = Counts::default();
        for request in &self.requests {
            counts.replace(Counts::default(), request.counts());
        }
        assert_eq!(self.counts, counts);
        let is_active = |request: &&Request| request.active().is_some();
        assert_eq!(
            self.all_active().count(),
            self.requests.iter().filter(is_active).count()
        );
    }

    fn recount(&mut self) {
        self.counts = Counts::default();
        for request in &self.requests {
            self.counts.replace(Counts::default(), request.counts());
        }
    }
}

impl Counts {
    /// A request that had added `before` adds `after`.
    fn replace(&mut self, before: Self, after: Self) {
        let replace = |count: &mut usize, before: usize, after: usize| {
            *count = (*count + after).saturating_sub(before);
        };
        replace(&mut self.wanted, before.wanted, after.wanted);
        replace(&mut self.ready, before.ready, after.ready);
        replace(&mut self.sent, before.sent, after.sent);
        replace(&mut self.over, before.over, after.over);
        replace(&mut self.suspects, before.suspects, after.suspects);
        replace(&mut self.detached, before.detached, after.detached);
        replace(&mut self.bytes, before.bytes, after.bytes);
    }
}

impl Request {
    pub(super) fn active(&self) -> Option<&Active> {
        match &self.step {
            Step::Active(active) => Some(active),
            Step::Unsorted(_) | Step::Wanted(_) => None,
        }
    }

    pub(super) fn active_mut(&mut self) -> Option<&mut Active> {
        match &mut self.step {
            Step::Active(active) => Some(active),
            Step::Unsorted(_) | Step::Wanted(_) => None,
        }
    }

    fn is_in_flight(&self) -> bool {
        self.active()
            .is_some_and(|active| matches!(active.state, State::Sent | State::Over(_)))
    }

    /// What it adds to the counts.
    fn counts(&self) -> Counts {
        let mut counts = Counts {
            wanted: usize::from(matches!(self.step, Step::Wanted(_))),
            detached: usize::from(self.transaction.is_none()),
            ..Counts::default()
        };
        if let Some(active) = self.active() {
            let state = match &active.state {
                State::Ready => &mut counts.ready,
                State::Sent => &mut counts.sent,
                State::Over(_) => &mut counts.over,
            };
            *state = 1;
            counts.suspects = usize::from(active.is_suspect);
            counts.bytes = active.message.as_ref().map_or(0, Message::len);
        }
        counts
    }
}

impl Active {
    pub(super) const fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent)
    }
}
