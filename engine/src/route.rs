//! Where an event goes: templates for the exchange and the routing key, and rules that choose among several.
//!
//! Everything is parsed once, bound to a relation once, and rendered for each event into buffers that are used again.

mod filter;
mod parse;
mod path;
mod reference;
mod router;
mod rule;
mod template;
#[cfg(test)]
mod tests;

pub use parse::TemplateError;
pub use reference::{Reference, RenderError, Setting, ValueFault};
pub use router::{Destination, Router};
pub use rule::{Condition, Rule};
pub use template::{Bound, BoundTemplate, Template};
