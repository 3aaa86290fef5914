//! Which queues a message would reach, by what the management API tells of exchanges and their bindings.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;
use serde_json::Value;

use super::binding;
use super::management::{Management, ManagementError, encoded};

/// How far exchanges are followed that are bound to one another.
const MAX_DEPTH: usize = 8;

/// The argument of an exchange, and the key of a policy: <https://www.rabbitmq.com/docs/ae>.
const ALTERNATE: &str = "alternate-exchange";

/// An exchange as the API has it.
#[derive(Debug, Deserialize)]
struct Described {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    arguments: HashMap<String, Value>,
    #[serde(default)]
    policy: Option<String>,
}

/// A policy as the API has it.
#[derive(Debug, Deserialize)]
struct Policy {
    definition: HashMap<String, Value>,
}

/// A binding as the API has it.
#[derive(Debug, Clone, Deserialize)]
struct Binding {
    destination: String,
    destination_type: String,
    routing_key: String,
}

/// Where an exchange hands on what it has no binding for. The broker confirms such a message and returns it only if the
/// alternate exchange finds no queue either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alternate {
    /// Nowhere.
    None,
    /// To this exchange.
    Exchange {
        /// Its name.
        name: String,
        /// The policy that says so; none where it is an argument of the exchange.
        policy: Option<String>,
    },
    /// A policy applies to it that the user may not read.
    Hidden {
        /// The policy.
        policy: String,
    },
}

/// What a message with a routing key would reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// These queues.
    Queues(BTreeSet<String>),
    /// The routing key alone does not decide: an exchange of this type is in the way.
    Undecided(String),
}

/// Exchanges and their bindings, as far as they were looked at.
#[derive(Debug, Default)]
pub struct Topology {
    exchanges: HashMap<String, Exchange>,
}

#[derive(Debug)]
struct Exchange {
    kind: String,
    alternate: Alternate,
    bindings: Vec<Binding>,
}

impl Management {
    /// Which queues a message would reach. What was looked at stays in `topology`.
    ///
    /// # Errors
    /// The API tells nothing.
    pub async fn reach(
        &self,
        topology: &mut Topology,
        vhost: &str,
        exchange: &str,
        routing_key: &str,
    ) -> Result<Reach, ManagementError> {
        let mut queues = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut waiting = vec![(exchange.to_owned(), 0)];
        while let Some((name, depth)) = waiting.pop() {
            if depth > MAX_DEPTH || !seen.insert(name.clone()) {
                continue;
            }
            if name.is_empty() {
                // The default exchange: the routing key names the queue.
                let path = format!("queues/{}/{}", encoded(vhost), encoded(routing_key));
                if self.exists(&path).await? {
                    queues.insert(routing_key.to_owned());
                }
                continue;
            }
            self.look(topology, vhost, &name).await?;
            let Some(exchange) = topology.exchanges.get(&name) else {
                continue;
            };
            let mut is_taken = false;
            for binding in &exchange.bindings {
                match binding::takes(&exchange.kind, &binding.routing_key, routing_key) {
                    None => return Ok(Reach::Undecided(exchange.kind.clone())),
                    Some(false) => {}
                    Some(true) if binding.destination_type == "queue" => {
                        is_taken = true;
                        queues.insert(binding.destination.clone());
                    }
                    Some(true) => {
                        is_taken = true;
                        waiting.push((binding.destination.clone(), depth + 1));
                    }
                }
            }
            if let Alternate::Exchange { name, .. } = &exchange.alternate
                && !is_taken
            {
                waiting.push((name.clone(), depth + 1));
            }
        }
        Ok(Reach::Queues(queues))
    }

    /// The alternate exchange of an exchange; none where that is not there. What was looked at stays in `topology`.
    ///
    /// # Errors
    /// The API tells nothing.
    pub async fn alternate(
        &self,
        topology: &mut Topology,
        vhost: &str,
        exchange: &str,
    ) -> Result<Alternate, ManagementError> {
        if exchange.is_empty() {
            // The default exchange has no arguments, and policies do not apply to it.
            return Ok(Alternate::None);
        }
        self.look(topology, vhost, exchange).await?;
        let known = topology.exchanges.get(exchange);
        Ok(known.map_or(Alternate::None, |exchange| exchange.alternate.clone()))
    }

    /// Reads an exchange and its bindings, once. One that is not there has none.
    async fn look(&self, topology: &mut Topology, vhost: &str, name: &str) -> Result<(), ManagementError> {
        if topology.exchanges.contains_key(name) {
            return Ok(());
        }
        let path = format!("exchanges/{}/{}", encoded(vhost), encoded(name));
        let described: Described = match self.get(&path).await {
            Ok(exchange) => exchange,
            Err(ManagementError::Status { status: 404 }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let exchange = Exchange {
            alternate: self.alternate_of(vhost, &described).await?,
            kind: described.kind,
            bindings: self.get(&format!("{path}/bindings/source")).await?,
        };
        topology.exchanges.insert(name.to_owned(), exchange);
        Ok(())
    }

    /// By an argument or else by the policy that applies. The order is RabbitMQ's.
    async fn alternate_of(&self, vhost: &str, exchange: &Described) -> Result<Alternate, ManagementError> {
        let named = |values: &HashMap<String, Value>| Some(values.get(ALTERNATE)?.as_str()?.to_owned());
        if let Some(name) = named(&exchange.arguments) {
            return Ok(Alternate::Exchange { name, policy: None });
        }
        let Some(policy) = exchange.policy.clone().filter(|name| !name.is_empty()) else {
            return Ok(Alternate::None);
        };
        let path = format!("policies/{}/{}", encoded(vhost), encoded(&policy));
        match self.get::<Policy>(&path).await {
            Ok(found) => Ok(match named(&found.definition) {
                Some(name) => Alternate::Exchange {
                    name,
                    policy: Some(policy),
                },
                None => Alternate::None,
            }),
            // It takes the tag policymaker to read one.
            Err(ManagementError::Status { status: 401 | 403 }) => Ok(Alternate::Hidden { policy }),
            // It was taken away since.
            Err(ManagementError::Status { status: 404 }) => Ok(Alternate::None),
            Err(error) => Err(error),
        }
    }
}
