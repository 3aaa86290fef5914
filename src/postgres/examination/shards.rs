//! The shards of a table: do they cover all of its rows, and each once? Looked at only where there is a shard.

use super::super::catalog::TableFacts;
use super::super::error::Error;
use super::super::joined::Joined;
use super::super::outbox::Outbox;
use super::super::preflight::checks::check_sharding;
use super::super::shard::{Part, Reader, Shard, is_same_cut, overlap, readers};
use super::{Subject, error_finding, unfit_finding};
use crate::caution::Caution;
use crate::finding::{Finding, Group};

/// The checks, in their order.
const CHECKS: &[&str] = &["shard", "coverage", "other cuts"];

/// Looks at who reads the table; nothing to say where it is not divided.
pub(super) async fn examine(subject: &Subject<'_>, outbox: &Outbox) -> Option<Group> {
    let shard = subject.examination.source.shard;
    let mut group = Group::new(format!("shards of {}", outbox.table));
    if let Err(unfit) = check_sharding(subject.server, shard) {
        group.push(unfit_finding("shard", &unfit));
        return Some(group.complete(CHECKS, "this server has no row filters"));
    }
    match look(subject, outbox).await {
        Ok(readers) if shard.is_none() && readers.iter().all(|reader| reader.shard.is_none()) => return None,
        Ok(readers) => {
            if let Err(error) = check_fit(subject, outbox, shard).await {
                group.push(error_finding("shard", &error));
                return Some(group.complete(CHECKS, "the table cannot be divided"));
            }
            judge(shard, outbox.aggregate_id(), &readers, &mut group);
        }
        // Without a shard nobody has asked.
        Err(_) if shard.is_none() => return None,
        Err(error) => group.push(error_finding("coverage", &error)),
    }
    Some(group.complete(CHECKS, "who reads the table is unknown"))
}

/// What set-up asks: has the aggregate's type a hash?
async fn check_fit(subject: &Subject<'_>, outbox: &Outbox, shard: Option<Shard>) -> Result<(), Error> {
    let facts = TableFacts::read(subject.session, outbox, None, subject.server.version).await?;
    if let (Some(shard), Some(facts)) = (shard, facts) {
        shard.filter(&facts, outbox)?;
    }
    Ok(())
}

async fn look(subject: &Subject<'_>, outbox: &Outbox) -> Result<Vec<Reader>, Error> {
    let version = subject.server.version;
    match TableFacts::read(subject.session, outbox, None, version).await? {
        Some(facts) => readers(subject.session, facts.oid, version, outbox.aggregate_id()).await,
        None => Ok(Vec::new()),
    }
}

fn judge(ours: Option<Shard>, column: &str, readers: &[Reader], group: &mut Group) {
    group.push(Finding::passed(
        "shard",
        match ours {
            Some(shard) if shard.number() == 0 => {
                format!("{shard}, by the hash of {column}; it also takes rows that have none")
            }
            Some(shard) => format!("{shard}, by the hash of {column}"),
            None => "all rows".to_owned(),
        },
    ));
    group.push(match ours {
        Some(shard) => coverage(shard, readers),
        None => Finding::passed("coverage", "all rows are this relay's"),
    });
    group.push(other_cuts(ours, readers));
}

/// Each shard of our cut must have one slot.
fn coverage(ours: Shard, readers: &[Reader]) -> Finding {
    const CHECK: &str = "coverage";
    let slots = |shard: Shard| {
        let of_it = readers.iter().filter(move |reader| reader.shard == Some(shard));
        of_it.flat_map(|reader| &reader.slots)
    };
    let missing: Vec<_> = ours
        .siblings()
        .filter(|shard| slots(*shard).count() == 0)
        .collect();
    if !missing.is_empty() {
        let found = format!("nobody delivers {}: no slot was set up", Joined(&parts(&missing)));
        let fixes: Vec<_> = missing
            .iter()
            .map(|shard| format!("walrelay setup --shard {shard}"))
            .collect();
        return Finding::caution(CHECK, Caution::ShardMissing, found).with_fix(fixes.join("; "));
    }
    let doubled: Vec<_> = ours
        .siblings()
        .filter(|shard| slots(*shard).count() > 1)
        .map(|shard| {
            let slots: Vec<_> = slots(shard).map(String::as_str).collect();
            format!("shard {shard} is brought by the slots {}", slots.join(", "))
        })
        .collect();
    if !doubled.is_empty() {
        return Finding::caution(CHECK, Caution::ShardsOverlap, Joined(&doubled).to_string());
    }
    Finding::passed(CHECK, format!("each of the {} shards has its slot", ours.of()))
}

/// A slot of another cut brings rows of ours once more.
fn other_cuts(ours: Option<Shard>, readers: &[Reader]) -> Finding {
    const CHECK: &str = "other cuts";
    let others: Vec<_> = readers
        .iter()
        .filter(|reader| !is_same_cut(reader.shard, ours) && overlap(reader.shard, ours))
        .flat_map(|reader| reader.slots.iter().map(|slot| (slot, reader.shard)))
        .map(|(slot, shard)| format!("slot {slot} brings {} too", Part(shard)))
        .collect();
    if others.is_empty() {
        return Finding::passed(CHECK, "no slot of another cut brings these rows");
    }
    Finding::caution(CHECK, Caution::ShardsOverlap, Joined(&others).to_string())
}

fn parts(shards: &[Shard]) -> Vec<String> {
    shards
        .iter()
        .map(|shard| Part(Some(*shard)).to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(shard: &str, slots: &[&str]) -> Reader {
        Reader {
            publication: format!("p{shard}"),
            shard: shard.parse().ok(),
            slots: slots.iter().map(|slot| (*slot).to_owned()).collect(),
        }
    }

    /// What is said of coverage and other cuts, each with its cause.
    fn said(ours: &str, readers: &[Reader]) -> Vec<String> {
        let mut group = Group::new("x");
        judge(ours.parse().ok(), "aggregate_id", readers, &mut group);
        let said = group.findings.iter().skip(1);
        said.map(|finding| format!("{}: {}", finding.cause.unwrap_or("passed"), finding.found))
            .collect()
    }

    #[test]
    fn shards_that_cover_everything_once_pass() {
        let readers = [reader("0/2", &["a"]), reader("1/2", &["b"])];
        assert_eq!(
            said("1/2", &readers),
            [
                "passed: each of the 2 shards has its slot",
                "passed: no slot of another cut brings these rows"
            ]
        );
    }

    #[test]
    fn a_shard_without_a_slot_is_missing() {
        // The second one has a publication that nobody reads.
        let readers = [reader("0/4", &["a"]), reader("1/4", &[]), reader("3/4", &["d"])];
        assert_eq!(
            said("0/4", &readers)[0],
            "shard_missing: nobody delivers shard 1/4; shard 2/4: no slot was set up"
        );
        let fix = coverage("0/4".parse().unwrap(), &readers).fix;
        assert_eq!(
            fix.as_deref(),
            Some("walrelay setup --shard 1/4; walrelay setup --shard 2/4")
        );
    }

    #[test]
    fn a_shard_with_two_slots_is_double() {
        let by_publications = [
            reader("0/2", &["a"]),
            reader("0/2", &["b"]),
            reader("1/2", &["c"]),
        ];
        let by_slots = [reader("0/2", &["a", "b"]), reader("1/2", &["c"])];
        for readers in [&by_publications[..], &by_slots[..]] {
            assert_eq!(
                said("1/2", readers)[0],
                "shards_overlap: shard 0/2 is brought by the slots a, b"
            );
        }
    }

    #[test]
    fn a_slot_of_another_cut_is_named_where_it_has_rows_of_ours() {
        let readers = [
            reader("", &["all"]),
            reader("0/2", &["a"]),
            reader("1/2", &["b"]),
            reader("0/4", &["c"]),
            reader("1/4", &["d"]),
        ];
        assert_eq!(
            said("1/2", &readers)[1],
            "shards_overlap: slot all brings all rows too; slot d brings shard 1/4 too"
        );
        assert!(said("", &readers)[1].contains("slot a brings shard 0/2 too"));
    }
}
