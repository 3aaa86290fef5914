//! What may become of an order: one table, which the code goes by, the tests go through, and the page is drawn from.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Where an order stands. The names in the database and in answers are those of [`Status::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It was placed.
    Created,
    /// A payment was asked for, and its outcome is not on record yet.
    Paying,
    /// The payment came through.
    Paid,
    /// The payment was declined. Final.
    Failed,
    /// The money is on its way back, and that is not on record yet.
    Refunding,
    /// The money went back. Final.
    Refunded,
}

/// A step from one status to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// Where the order has to stand.
    pub from: Status,
    /// Where it stands then.
    pub to: Status,
    /// What makes it go.
    pub cause: &'static str,
}

/// All transitions. What is not here does not happen.
pub const TRANSITIONS: [Transition; 5] = [
    step(Status::Created, Status::Paying, "a payment is requested"),
    step(Status::Paying, Status::Paid, "the provider has charged the card"),
    step(
        Status::Paying,
        Status::Failed,
        "the provider has declined the card",
    ),
    step(Status::Paid, Status::Refunding, "a refund is requested"),
    step(Status::Refunding, Status::Refunded, "the provider has paid back"),
];

const fn step(from: Status, to: Status, cause: &'static str) -> Transition {
    Transition { from, to, cause }
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 6] = [
        Status::Created,
        Status::Paying,
        Status::Paid,
        Status::Failed,
        Status::Refunding,
        Status::Refunded,
    ];

    /// Its name in the column `orders.status` and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Paying => "paying",
            Status::Paid => "paid",
            Status::Failed => "failed",
            Status::Refunding => "refunding",
            Status::Refunded => "refunded",
        }
    }

    /// The type of the event that is written when an order comes to stand here.
    pub const fn event_type(self) -> &'static str {
        match self {
            Status::Created => "OrderCreated",
            Status::Paying => "OrderPaying",
            Status::Paid => "OrderPaid",
            Status::Failed => "OrderFailed",
            Status::Refunding => "OrderRefunding",
            Status::Refunded => "OrderRefunded",
        }
    }

    /// From where an order can come here.
    pub fn sources(self) -> impl Iterator<Item = Status> {
        let transitions = TRANSITIONS.iter().filter(move |transition| transition.to == self);
        transitions.map(|transition| transition.from)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that is no status.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no status of an order")]
pub struct UnknownStatus(String);

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(name: &str) -> Result<Status, UnknownStatus> {
        let status = Status::ALL.into_iter().find(|status| status.name() == name);
        status.ok_or_else(|| UnknownStatus(name.to_owned()))
    }
}

/// The state machine in Markdown: a Mermaid diagram, and a table of the events.
pub fn drawing() -> String {
    let mut text = String::from("```mermaid\nstateDiagram-v2\n");
    let mut line = |arguments: fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        writeln!(text, "{arguments}").ok();
    };
    line(format_args!("    [*] --> {}", Status::Created));
    for Transition { from, to, .. } in TRANSITIONS {
        line(format_args!("    {from} --> {to}"));
    }
    let finals = Status::ALL.into_iter().filter(|status| status.is_final());
    for status in finals {
        line(format_args!("    {status} --> [*]"));
    }
    line(format_args!(
        "```\n\n| from | to | when | event |\n|---|---|---|---|"
    ));
    line(format_args!(
        "| | {} | an order is placed | `{}` |",
        Status::Created,
        Status::Created.event_type()
    ));
    for Transition { from, to, cause } in TRANSITIONS {
        line(format_args!(
            "| {from} | {to} | {cause} | `{}` |",
            to.event_type()
        ));
    }
    text
}

impl Status {
    fn is_final(self) -> bool {
        TRANSITIONS.iter().all(|transition| transition.from != self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over all pairs, against the rule written down a second time.
    #[test]
    fn an_order_goes_from_created_over_paying_to_paid_or_failed_and_from_paid_over_refunding_to_refunded() {
        let legal = |from, to| {
            use Status::*;
            matches!(
                (from, to),
                (Created, Paying) | (Paying, Paid | Failed) | (Paid, Refunding) | (Refunding, Refunded)
            )
        };
        for from in Status::ALL {
            for to in Status::ALL {
                let times = to.sources().filter(|source| *source == from).count();
                assert_eq!(times, usize::from(legal(from, to)), "{from} -> {to}");
            }
        }
    }

    #[test]
    fn every_status_has_a_name_and_an_event_of_its_own_and_can_be_reached() {
        let names: std::collections::HashSet<_> = Status::ALL.map(Status::name).into_iter().collect();
        let events: std::collections::HashSet<_> = Status::ALL.map(Status::event_type).into_iter().collect();
        assert_eq!((names.len(), events.len()), (6, 6));
        for status in Status::ALL {
            assert_eq!(status.name().parse::<Status>().unwrap(), status);
            assert!(
                status == Status::Created || status.sources().next().is_some(),
                "{status}"
            );
        }
        let error = "lost".parse::<Status>().unwrap_err();
        assert_eq!(error.to_string(), "\"lost\" is no status of an order");
    }

    /// The page shows this very value.
    #[test]
    fn the_page_has_this_drawing() {
        let page = include_str!("README.md");
        let drawn = page
            .split_once("<!-- state machine -->\n")
            .and_then(|(_, rest)| rest.split_once("<!-- end -->"))
            .map(|(drawn, _)| drawn);
        assert_eq!(drawn, Some(drawing().as_str()), "paste this:\n{}", drawing());
    }
}
