//! The guard: is what is published still what it was at set-up? (rules 4 and 5)

use std::fmt;

use tokio_postgres::types::Oid;
use walrelay_engine::Lsn;

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, SlotName};
use super::joined::Joined;
use super::preflight::Source;
use super::slot::SlotState;
use super::state::{Baseline, Member, MemberKind, TableMark};

/// Why the relay may not go on: rows may have been written that the stream does not bring. It stays so until
/// `walrelay recover`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Nothing to compare with.
    #[error("slot `{slot}` has no baseline: it was set up by an older version, or by hand")]
    NoBaseline {
        /// The slot.
        slot: SlotName,
    },
    /// Something is not as it was.
    #[error("{}", Joined(.0))]
    Changed(
        /// What; never empty.
        Vec<Difference>,
    ),
}

/// One thing that is not as it was at set-up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Another cluster: restored from a dump, or upgraded.
    #[error("the baseline is of another cluster (system id {then}, now {now})")]
    Cluster {
        /// The system id at set-up.
        then: String,
        /// The system id now.
        now: String,
    },
    /// Another publication is configured.
    #[error("the configuration names publication \"{now}\", set-up was for \"{then}\"")]
    OtherPublication {
        /// The one at set-up.
        then: String,
        /// The one configured.
        now: String,
    },
    /// No publication of that name.
    #[error("publication \"{0}\" was dropped or renamed since set-up")]
    PublicationDropped(
        /// Its name.
        String,
    ),
    /// A new publication of that name.
    #[error("publication \"{0}\" was dropped and created again since set-up")]
    PublicationReplaced(
        /// Its name.
        String,
    ),
    /// The publication's row was written again.
    #[error("publication \"{0}\" was altered since set-up (publish, another option, name or owner)")]
    PublicationAltered(
        /// Its name.
        String,
    ),
    /// A new member.
    #[error("{0} was added to the publication since set-up")]
    MemberAdded(
        /// The member.
        MemberName,
    ),
    /// A member less.
    #[error("{0} was taken out of the publication since set-up")]
    MemberRemoved(
        /// The member.
        MemberName,
    ),
    /// A member out and in again.
    #[error(
        "{0} was taken out of the publication and added again, or its filter or columns were changed, since set-up"
    )]
    MemberReplaced(
        /// The member.
        MemberName,
    ),
    /// An outbox table under another name.
    #[error("table {then} was renamed to {now} since set-up")]
    TableRenamed {
        /// The configured name.
        then: QualifiedTable,
        /// Its name now.
        now: QualifiedTable,
    },
    /// An outbox table less.
    #[error("table {0} was dropped since set-up")]
    TableDropped(
        /// Its name.
        QualifiedTable,
    ),
    /// Another table under an outbox's name.
    #[error("table {0} was dropped and created again, or another was renamed to it, since set-up")]
    TableReplaced(
        /// Its name.
        QualifiedTable,
    ),
    /// An outbox that set-up did not know.
    #[error("table {0} was configured after set-up (run `walrelay setup`)")]
    TableNew(
        /// Its name.
        QualifiedTable,
    ),
}

/// A member of a publication, printed `table public.orders` or `schema shop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberName {
    /// Which kind.
    pub kind: MemberKind,
    /// The table or schema.
    pub object: Oid,
    /// Its name.
    pub name: String,
}

impl From<&Member> for MemberName {
    fn from(member: &Member) -> Self {
        Self {
            kind: member.kind,
            object: member.object,
            name: member.name.clone(),
        }
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            MemberKind::Table => "table",
            MemberKind::Schema => "schema",
        };
        write!(f, "{kind} {}", self.name)
    }
}

/// What was seen on the way, where nothing differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The slot, if there is one.
    pub slot: Option<SlotState>,
    /// The end of the flushed log.
    pub log_end: Lsn,
}

/// Compares what is there with the baseline. For the start of a session, before it streams, and every
/// `guard_interval`.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.state`.
///
/// Cancel safety: nothing is changed.
///
/// # Errors
/// [`Error::Changed`] with what changed or with the word that there is no baseline; [`Error::GrantMissing`] and
/// [`Error::OwnSchema`] where the baseline cannot be read; or a query fails.
pub async fn check(session: &ControlSession, source: &Source) -> Result<Checked, Error> {
    let loaded = Baseline::load(session, source).await?;
    let Some(baseline) = loaded.stored else {
        let slot = source.slot.clone();
        return Err(Mismatch::NoBaseline { slot }.into());
    };
    let differences = compare(session, &baseline, &loaded.observed).await?;
    if differences.is_empty() {
        return Ok(Checked {
            slot: loaded.slot,
            log_end: loaded.log_end,
        });
    }
    Err(Mismatch::Changed(differences).into())
}

/// The differences, with the names that moved tables have now.
pub(super) async fn compare(
    session: &ControlSession,
    baseline: &Baseline,
    observed: &Baseline,
) -> Result<Vec<Difference>, Error> {
    let mut differences = differences(baseline, observed);
    for difference in &mut differences {
        let Difference::TableDropped(table) = difference else {
            continue;
        };
        let mark = baseline.tables.iter().find(|mark| mark.qualified() == *table);
        let Some(oid) = mark.and_then(|mark| mark.oid) else {
            continue;
        };
        if let Some(now) = name_of(session, oid).await? {
            *difference = Difference::TableRenamed {
                then: table.clone(),
                now,
            };
        }
    }
    Ok(differences)
}

async fn name_of(session: &ControlSession, oid: Oid) -> Result<Option<QualifiedTable>, Error> {
    const PURPOSE: &str = "look for a renamed table";
    let sql = "select n.nspname::text, c.relname::text from pg_catalog.pg_class c \
               join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = $1";
    let row = session
        .run(PURPOSE, session.client().query_opt(sql, &[&oid]))
        .await?;
    row.map(|row| {
        Ok(QualifiedTable {
            schema: column(&row, 0, PURPOSE)?,
            name: column(&row, 1, PURPOSE)?,
        })
    })
    .transpose()
}

/// What differs. A timeline does not count: a promotion keeps everything else.
fn differences(then: &Baseline, now: &Baseline) -> Vec<Difference> {
    let mut found = Vec::new();
    if then.system_id != now.system_id {
        found.push(Difference::Cluster {
            then: then.system_id.clone(),
            now: now.system_id.clone(),
        });
    }
    let name = || now.publication.clone();
    let same_publication = match (&then.row, &now.row) {
        _ if then.publication != now.publication => {
            found.push(Difference::OtherPublication {
                then: then.publication.clone(),
                now: name(),
            });
            false
        }
        (_, None) => {
            found.push(Difference::PublicationDropped(name()));
            false
        }
        (Some(before), Some(after)) if before.oid == after.oid => {
            if before.xmin != after.xmin || before.options != after.options {
                found.push(Difference::PublicationAltered(name()));
            }
            true
        }
        _ => {
            found.push(Difference::PublicationReplaced(name()));
            false
        }
    };
    // Members of another publication are other rows anyway: one word for it is enough.
    if same_publication {
        found.extend(member_differences(&then.members, &now.members));
    }
    found.extend(
        now.tables
            .iter()
            .filter_map(|table| table_difference(table, &then.tables)),
    );
    found
}

fn member_differences<'a>(then: &'a [Member], now: &'a [Member]) -> impl Iterator<Item = Difference> + 'a {
    let find = |members: &'a [Member], member: &Member| {
        members
            .iter()
            .find(|other| (other.kind, other.object) == (member.kind, member.object))
    };
    let removed = then
        .iter()
        .filter(move |member| find(now, member).is_none())
        .map(|member| Difference::MemberRemoved(member.into()));
    let changed = now.iter().filter_map(move |member| match find(then, member) {
        None => Some(Difference::MemberAdded(member.into())),
        Some(before) if (before.oid, &before.xmin) == (member.oid, &member.xmin) => None,
        Some(_) => Some(Difference::MemberReplaced(member.into())),
    });
    removed.chain(changed)
}

fn table_difference(now: &TableMark, then: &[TableMark]) -> Option<Difference> {
    let table = now.qualified();
    let Some(before) = then.iter().find(|mark| mark.qualified() == table) else {
        return Some(Difference::TableNew(table));
    };
    match now.oid {
        oid if oid == before.oid => None,
        None => Some(Difference::TableDropped(table)),
        Some(_) => Some(Difference::TableReplaced(table)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{PublicationOptions, PublicationRow};
    use super::*;

    fn baseline() -> Baseline {
        Baseline {
            system_id: "7".to_owned(),
            timeline: 1,
            publication: "walrelay".to_owned(),
            row: Some(PublicationRow {
                oid: 10,
                xmin: "700".to_owned(),
                options: PublicationOptions {
                    all_tables: false,
                    insert: true,
                    update: false,
                    delete: false,
                    truncate: false,
                    via_partition_root: false,
                },
            }),
            members: vec![Member {
                kind: MemberKind::Table,
                object: 20,
                name: "public.outbox_events".to_owned(),
                oid: 30,
                xmin: "700".to_owned(),
            }],
            tables: vec![TableMark {
                schema: "public".to_owned(),
                name: "outbox_events".to_owned(),
                oid: Some(20),
            }],
        }
    }

    /// What the guard says after one change, in one line.
    fn said(change: impl FnOnce(&mut Baseline)) -> String {
        let mut now = baseline();
        change(&mut now);
        Joined(&differences(&baseline(), &now)).to_string()
    }

    fn row(now: &mut Baseline) -> &mut PublicationRow {
        now.row.as_mut().unwrap()
    }

    #[test]
    fn nothing_is_said_where_nothing_changed() {
        assert_eq!(said(|_| {}), "");
        assert_eq!(said(|now| now.timeline = 2), "");
        assert_eq!(said(|now| now.members[0].name = "public.other".to_owned()), "");
    }

    #[test]
    fn every_change_is_named_in_one_line() {
        for (said, words) in [
            (
                said(|now| now.system_id = "8".to_owned()),
                "the baseline is of another cluster (system id 7, now 8)",
            ),
            (
                said(|now| now.row = None),
                "publication \"walrelay\" was dropped or renamed since set-up",
            ),
            (
                said(|now| row(now).oid = 11),
                "publication \"walrelay\" was dropped and created again since set-up",
            ),
            (
                said(|now| row(now).xmin = "701".to_owned()),
                "publication \"walrelay\" was altered since set-up (publish, another option, name or owner)",
            ),
            (
                said(|now| now.members.clear()),
                "table public.outbox_events was taken out of the publication since set-up",
            ),
            (
                said(|now| now.members[0].xmin = "701".to_owned()),
                "table public.outbox_events was taken out of the publication and added again, or its filter or \
                 columns were changed, since set-up",
            ),
            (
                said(|now| now.members[0].kind = MemberKind::Schema),
                "table public.outbox_events was taken out of the publication since set-up; schema \
                 public.outbox_events was added to the publication since set-up",
            ),
            (
                said(|now| now.tables[0].oid = None),
                "table public.outbox_events was dropped since set-up",
            ),
            (
                said(|now| now.tables[0].oid = Some(21)),
                "table public.outbox_events was dropped and created again, or another was renamed to it, since set-up",
            ),
            (
                said(|now| now.tables[0].name = "more".to_owned()),
                "table public.more was configured after set-up (run `walrelay setup`)",
            ),
        ] {
            assert_eq!(said, words);
        }
    }

    #[test]
    fn a_new_publication_is_one_difference_though_all_its_members_are_new() {
        let said = said(|now| {
            row(now).oid = 11;
            now.members[0].oid = 31;
        });
        assert_eq!(
            said,
            "publication \"walrelay\" was dropped and created again since set-up"
        );
    }
}
