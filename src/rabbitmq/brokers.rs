//! The brokers of `rabbitmq.uri`, tried in turn.

use std::collections::VecDeque;
use std::mem;

use super::Connector;
use crate::fault::{Class, FaultKind};

/// Whose turn it is to be connected to: it stays with the one that last worked, and passes on when a try fails.
#[derive(Debug, Clone)]
pub struct Brokers {
    current: Connector,
    others: VecDeque<Connector>,
    /// So many times in a row a try failed, or a link was lost, for want of a person.
    halts: usize,
}

impl Brokers {
    /// Begins with `first`.
    #[must_use]
    pub fn new(first: Connector, others: impl IntoIterator<Item = Connector>) -> Self {
        Self {
            current: first,
            others: others.into_iter().collect(),
            halts: 0,
        }
    }

    /// The same brokers, each changed in the same way.
    #[must_use]
    pub fn map(self, mut change: impl FnMut(Connector) -> Connector) -> Self {
        Self {
            current: change(self.current),
            others: self.others.into_iter().map(change).collect(),
            halts: self.halts,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The one whose turn it is: of the link that is up, or of the next try.
    #[must_use]
    pub const fn current(&self) -> &Connector {
        &self.current
    }

    /// All of them, in the order of the settings.
    pub fn each(&self) -> impl Iterator<Item = &Connector> {
        std::iter::once(&self.current).chain(&self.others)
    }

    /// A link is up, and nothing speaks against it.
    pub const fn connected(&mut self) {
        self.halts = 0;
    }

    /// A try to connect failed: it is the next one's turn. Returns whether a person is needed, which is so once each
    /// has failed twice in a row in a way that does not heal alone.
    pub fn failed(&mut self, kind: FaultKind) -> bool {
        if let Some(next) = self.others.pop_front() {
            self.others.push_back(mem::replace(&mut self.current, next));
        }
        self.struck(kind)
    }

    /// A link that was up is lost; the turn stays. Returns as [`failed`](Self::failed) does.
    pub fn struck(&mut self, kind: FaultKind) -> bool {
        self.halts = match kind.class() {
            Class::Halted => self.halts.saturating_add(1),
            Class::Unavailable | Class::Held | Class::Risk | Class::Degraded => 0,
        };
        self.halts >= self.count().saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rabbitmq::BrokerUri;

    fn brokers(hosts: &[&str]) -> Brokers {
        let mut connectors = hosts.iter().map(|host| Connector {
            uri: BrokerUri::parse(&format!("amqp://{host}")).expect("a URI"),
            password_file: None,
            tls: None,
            mechanisms: Vec::new(),
            name: String::new(),
            heartbeat: Duration::ZERO,
            exchanges: Vec::new(),
            has_open_exchanges: true,
            timeout: Duration::ZERO,
            stream: None,
        });
        Brokers::new(connectors.next().expect("a host"), connectors)
    }

    #[test]
    fn the_turn_passes_on_a_failure_only_and_comes_round() {
        let mut brokers = brokers(&["a", "b", "c"]);
        let mut turns = Vec::new();
        for fails in [true, false, true, true, false, true] {
            turns.push(brokers.current().uri.host.clone());
            match fails {
                true => assert!(!brokers.failed(FaultKind::BrokerUnreachable)),
                false => brokers.connected(),
            }
        }
        assert_eq!(turns, ["a", "b", "b", "c", "a", "a"]);
    }

    #[test]
    fn r8_a_person_is_needed_once_every_broker_has_needed_one_twice() {
        let mut only = brokers(&["a"]);
        assert!(!only.failed(FaultKind::BrokerVhost));
        assert!(only.failed(FaultKind::BrokerVhost));
        assert!(!only.failed(FaultKind::BrokerUnreachable));
        assert!(!only.struck(FaultKind::ExchangeMissing));
        assert!(only.failed(FaultKind::ExchangeMissing));

        let mut two = brokers(&["a", "b"]);
        assert!(!two.failed(FaultKind::BrokerVhost));
        assert!(!two.failed(FaultKind::BrokerUnreachable));
        for _ in 0..3 {
            assert!(!two.failed(FaultKind::ExchangeMissing));
        }
        assert!(two.failed(FaultKind::BrokerVhost));
        two.connected();
        assert!(!two.failed(FaultKind::BrokerVhost));
    }
}
