//! Shards: several relays share a table, each with the aggregates whose hashes leave one remainder (rule 25).
//!
//! The publication of each has a row filter, so the server sends each relay its own rows only. The same condition goes into
//! what reads or marks rows of the table by SQL. The filter is understood by its text, and no other one is let pass.

mod drained;
mod readers;

use std::fmt;
use std::str::FromStr;

use tokio_postgres::types::Oid;

use super::catalog::TableFacts;
use super::identifier::quote_identifier;
use super::outbox::Outbox;
use super::preflight::{MissingColumns, Unfit};

pub(super) use drained::check_drained;
pub use drained::check_turn;
pub(super) use readers::{Reader, readers};

/// Row filters came with this version.
/// <https://www.postgresql.org/docs/current/logical-replication-row-filter.html>
pub const MIN_SHARD_MAJOR: u32 = 15;

/// More walsenders than that, each decoding all of the WAL, no server would bear.
const MOST: u32 = 1024;

/// Makes a hash, whose sign is any, a number to be divided.
const POSITIVE: &str = "& 2147483647";

/// Types with a hash function that is built in, immutable, and callable from SQL: a row filter may use nothing else, no
/// cast either. Each with that function and how its argument is printed. Object ids as in `pg_type.dat`.
const HASHES: &[(Oid, &str, &str)] = &[
    (20, "hashint8", ""),
    (21, "hashint2", ""),
    (23, "hashint4", ""),
    (25, "hashtext", ""),
    (1042, "hashbpchar", ""),
    (1043, "hashtext", "::text"),
    (1700, "hash_numeric", ""),
    (2950, "uuid_hash", ""),
];

/// One of the shards of a table, counted from 0. Printed and parsed as `1/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    /// How many there are; the first, so that shards of one cut are sorted together.
    of: u32,
    /// Which one, less than that.
    number: u32,
}

/// A text that names no shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no shard: expected K/N as in 1/4, N from 2 to {MOST}, K from 0 to N - 1; leave it out for a single relay"
)]
pub struct ShardError(String);

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_plain)
        };
        text.split_once('/')
            .and_then(|(which, of)| Some((number(which)?, number(of)?)))
            .filter(|(number, of)| (2..=MOST).contains(of) && number < of)
            .map(|(number, of)| Self { of, number })
            .ok_or_else(|| ShardError(text.to_owned()))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl Shard {
    /// Which one, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// How many there are.
    #[must_use]
    pub const fn of(self) -> u32 {
        self.of
    }

    /// All shards of the same cut, this one among them.
    pub(super) fn siblings(self) -> impl Iterator<Item = Self> {
        let of = self.of;
        (0..of).map(move |number| Self { of, number })
    }

    /// The condition that a row is of this shard, on a value of a type; none where that type has no hash that a filter
    /// may use. The first one also takes rows without an aggregate, which belong to no hash.
    fn condition(self, value: &str, type_oid: Oid) -> Option<String> {
        let Self { of, number } = self;
        let (_, hash, _) = HASHES.iter().find(|(oid, ..)| *oid == type_oid)?;
        let own = format!("pg_catalog.mod(pg_catalog.{hash}({value}) {POSITIVE}, {of}) = {number}");
        Some(match number {
            0 => format!("({own} or {value} is null)"),
            _ => format!("({own})"),
        })
    }

    /// The condition that a row `t` is of this shard, where `type_oid` is its aggregate's type. Without a hash of that type it
    /// is of none.
    pub(super) fn rows(self, column: &str, type_oid: Option<Oid>) -> String {
        let value = format!("t.{}", quote_identifier(column));
        let condition = type_oid.and_then(|oid| self.condition(&value, oid));
        condition.unwrap_or_else(|| "false".to_owned())
    }

    /// The row filter for a table.
    ///
    /// # Errors
    /// The column has a type without a hash that a filter may use, or is missing.
    pub(super) fn filter(self, facts: &TableFacts, outbox: &Outbox) -> Result<String, Unfit> {
        let (table, name) = (&outbox.table, outbox.aggregate_id());
        let Some(column) = facts.column(name) else {
            let missing = MissingColumns::one(table, name, "aggregate_id");
            return Err(Unfit::ColumnsMissing(missing));
        };
        let condition = self.condition(&quote_identifier(name), column.type_oid);
        condition.ok_or_else(|| Unfit::ShardType {
            table: table.clone(),
            column: name.to_owned(),
            type_name: column.type_name.clone(),
        })
    }

    /// The row filter of a table whose aggregates are bigint, for those who cannot ask the table.
    pub(super) fn filter_of_bigint(self, outbox: &Outbox) -> String {
        const BIGINT: Oid = 20;
        let condition = self.condition(&quote_identifier(outbox.aggregate_id()), BIGINT);
        condition.unwrap_or_else(|| "(false)".to_owned())
    }

    /// The shard that a filter makes, as the server prints it, if it is exactly one of ours on this column.
    pub(super) fn of_filter(filter: &str, name: &str, type_oid: Oid) -> Option<Self> {
        let (_, rest) = filter.split_once(&format!(" {POSITIVE}), "))?;
        let (of, rest) = rest.split_once(") = ")?;
        let number = rest.split(')').next()?;
        let shard: Self = format!("{number}/{of}").parse().ok()?;
        let spellings = [name.to_owned(), quote_identifier(name)];
        let is_ours = |column: &String| shard.printed(column, type_oid).as_deref() == Some(filter);
        spellings.iter().any(is_ours).then_some(shard)
    }

    /// The filter as the server prints it.
    fn printed(self, column: &str, type_oid: Oid) -> Option<String> {
        let Self { of, number } = self;
        let (_, hash, cast) = HASHES.iter().find(|(oid, ..)| *oid == type_oid)?;
        let value = match *cast {
            "" => column.to_owned(),
            cast => format!("({column}){cast}"),
        };
        let own = format!("(mod(({hash}({value}) {POSITIVE}), {of}) = {number})");
        Some(match number {
            0 => format!("({own} OR ({column} IS NULL))"),
            _ => own,
        })
    }
}

/// Which rows of a table a publication publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishedRows {
    /// All.
    All,
    /// Those of a shard.
    Shard(Shard),
    /// Some, by a filter that is none of ours.
    Filtered,
}

impl PublishedRows {
    /// What a filter lets through.
    pub(super) fn of_filter(filter: Option<&str>, name: &str, type_oid: Option<Oid>) -> Self {
        let Some(filter) = filter else { return Self::All };
        type_oid
            .and_then(|oid| Shard::of_filter(filter, name, oid))
            .map_or(Self::Filtered, Self::Shard)
    }
}

/// A relay's rows in words: `shard 1/4`, or all.
pub(super) struct Part(pub(super) Option<Shard>);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(shard) => write!(f, "shard {shard}"),
            None => f.write_str("all rows"),
        }
    }
}

/// Whether two relays would have a row in common: always, but for two shards whose numbers differ by what divides
/// both cuts.
pub(super) fn overlap(one: Option<Shard>, other: Option<Shard>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return true;
    };
    let divisor = greatest_divisor(one.of, other.of);
    one.number % divisor == other.number % divisor
}

/// Whether both are parts of the same cut.
pub(super) fn is_same_cut(one: Option<Shard>, other: Option<Shard>) -> bool {
    one.map(Shard::of) == other.map(Shard::of)
}

fn greatest_divisor(one: u32, other: u32) -> u32 {
    match other {
        0 => one,
        _ => greatest_divisor(other, one % other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shard(text: &str) -> Shard {
        text.parse().unwrap()
    }

    #[test]
    fn a_shard_is_a_number_below_how_many_there_are() {
        for (text, valid) in [
            ("0/2", true),
            ("3/4", true),
            ("1023/1024", true),
            ("4/4", false),
            ("0/1", false),
            ("0/1025", false),
            ("1", false),
            ("1/", false),
            ("+1/4", false),
            ("1/4/2", false),
            ("-1/4", false),
            (" 1/4", false),
            ("", false),
        ] {
            let parsed = text.parse::<Shard>();
            assert_eq!(parsed.is_ok(), valid, "{text}");
            assert!(parsed.is_err() || parsed.unwrap().to_string() == text);
        }
    }

    #[test]
    fn each_type_has_its_hash_and_some_have_none() {
        let text = |type_oid| shard("1/4").condition("v", type_oid);
        assert_eq!(
            text(20).unwrap(),
            "(pg_catalog.mod(pg_catalog.hashint8(v) & 2147483647, 4) = 1)"
        );
        assert_eq!(
            text(1043).unwrap(),
            "(pg_catalog.mod(pg_catalog.hashtext(v) & 2147483647, 4) = 1)"
        );
        // json, date and an enumeration.
        assert_eq!([text(114), text(1082), text(20_000)], [None, None, None]);
        assert_eq!(shard("0/2").rows("Who", Some(1082)), "false");
    }

    #[test]
    fn the_first_shard_takes_rows_without_an_aggregate() {
        assert_eq!(
            shard("0/2").rows("aggregate_id", Some(2950)),
            "(pg_catalog.mod(pg_catalog.uuid_hash(t.\"aggregate_id\") & 2147483647, 2) = 0 or t.\"aggregate_id\" is null)"
        );
    }

    /// As PostgreSQL 15, 16 and 18 print them.
    #[test]
    fn filters_of_ours_are_understood_as_the_server_prints_them() {
        for (filter, name, type_oid, text) in [
            ("(mod((hashint8(a) & 2147483647), 4) = 1)", "a", 20, "1/4"),
            (
                "((mod((hashint8(a) & 2147483647), 4) = 0) OR (a IS NULL))",
                "a",
                20,
                "0/4",
            ),
            (
                "(mod((hashtext((a)::text) & 2147483647), 3) = 2)",
                "a",
                1043,
                "2/3",
            ),
            (
                "((mod((hashtext((a)::text) & 2147483647), 3) = 0) OR (a IS NULL))",
                "a",
                1043,
                "0/3",
            ),
            (
                "((mod((hashtext(\"Odd (1)\") & 2147483647), 4) = 0) OR (\"Odd (1)\" IS NULL))",
                "Odd (1)",
                25,
                "0/4",
            ),
        ] {
            assert_eq!(Shard::of_filter(filter, name, type_oid), Some(shard(text)));
        }
    }

    #[test]
    fn any_other_filter_is_none_of_ours() {
        for filter in [
            "(a > 5)",
            "(mod((hashint8(b) & 2147483647), 4) = 1)",
            "(mod((hashint8(a) & 2147483647), 4) = 4)",
            "(mod((hashint8(a) & 2147483647), 4) <> 1)",
            "(mod((hashint8(a) & 2147483647), 1) = 0)",
            // Without the rows that have no aggregate, and with them at another one.
            "(mod((hashint8(a) & 2147483647), 4) = 0)",
            "((mod((hashint8(a) & 2147483647), 4) = 1) OR (a IS NULL))",
            "((mod((hashint8(a) & 2147483647), 4) = 1) AND (a > 5))",
            "(mod((hashint4(a) & 2147483647), 4) = 1)",
            "(mod((hashint8(a) & 255), 4) = 1)",
        ] {
            assert_eq!(Shard::of_filter(filter, "a", 20), None, "{filter}");
        }
        let of = |filter| PublishedRows::of_filter(filter, "a", Some(20));
        assert_eq!(of(None), PublishedRows::All);
        assert_eq!(of(Some("true")), PublishedRows::Filtered);
    }

    #[test]
    fn all_rows_overlap_with_every_shard() {
        assert!(overlap(None, Some(shard("1/4"))));
        assert!(overlap(None, None));
        assert!(is_same_cut(Some(shard("1/4")), Some(shard("2/4"))));
        assert!(!is_same_cut(Some(shard("1/4")), None));
    }

    proptest! {
        /// Against trying every hash below the product of both cuts.
        #[test]
        fn two_shards_overlap_where_a_hash_is_of_both(of in 2_u32..20, other in 2_u32..20, a in 0_u32..20, b in 0_u32..20) {
            let (one, two) = (Shard { of, number: a % of }, Shard { of: other, number: b % other });
            let both = (0..of * other).any(|hash| hash % of == one.number && hash % other == two.number);
            prop_assert_eq!(overlap(Some(one), Some(two)), both);
        }

        #[test]
        fn what_is_printed_is_understood(of in 2_u32..1025, number in 0_u32..1024, name in "[a-zA-Z\" ()_]{1,12}") {
            let shard = Shard { of, number: number % of };
            for (oid, ..) in HASHES {
                let printed = shard.printed(&quote_identifier(&name), *oid).unwrap();
                prop_assert_eq!(Shard::of_filter(&printed, &name, *oid), Some(shard));
            }
        }
    }
}
