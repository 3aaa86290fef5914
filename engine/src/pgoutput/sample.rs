//! Owned messages and their encoder, so that tests can make frames as a server would.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Content, Message, OldTuple, Tuple, Value};

/// A message with data of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sample {
    Begin {
        final_lsn: u64,
        commit_time: i64,
        xid: u32,
    },
    Commit {
        flags: u8,
        commit_lsn: u64,
        end_lsn: u64,
        commit_time: i64,
    },
    Origin {
        commit_lsn: u64,
        name: String,
    },
    Relation {
        oid: u32,
        namespace: String,
        name: String,
        replica_identity: u8,
        columns: Vec<SampleColumn>,
    },
    Type {
        oid: u32,
        namespace: String,
        name: String,
    },
    Insert {
        oid: u32,
        new: Row,
    },
    Update {
        oid: u32,
        old: Option<(u8, Row)>,
        new: Row,
    },
    Delete {
        oid: u32,
        old: (u8, Row),
    },
    Truncate {
        options: u8,
        oids: Vec<u32>,
    },
    Message {
        flags: u8,
        lsn: u64,
        prefix: String,
        /// Or, once it was condensed, a marker.
        content: Cell,
    },
}

pub(crate) type Row = Vec<Cell>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Unchanged,
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Oversized { length: u64, limit: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SampleColumn {
    pub(crate) flags: u8,
    pub(crate) name: String,
    pub(crate) type_oid: u32,
    pub(crate) type_modifier: i32,
}

impl Sample {
    /// The bytes that PostgreSQL sends for it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::new());
        match self {
            Self::Begin {
                final_lsn,
                commit_time,
                xid,
            } => {
                out.put(b"B")
                    .put(&final_lsn.to_be_bytes())
                    .put(&commit_time.to_be_bytes())
                    .put(&xid.to_be_bytes());
            }
            Self::Commit {
                flags,
                commit_lsn,
                end_lsn,
                commit_time,
            } => {
                out.put(b"C")
                    .put(&[*flags])
                    .put(&commit_lsn.to_be_bytes())
                    .put(&end_lsn.to_be_bytes());
                out.put(&commit_time.to_be_bytes());
            }
            Self::Origin { commit_lsn, name } => {
                out.put(b"O").put(&commit_lsn.to_be_bytes()).cstr(name);
            }
            Self::Relation {
                oid,
                namespace,
                name,
                replica_identity,
                columns,
            } => {
                out.put(b"R")
                    .put(&oid.to_be_bytes())
                    .namespace(namespace)
                    .cstr(name)
                    .put(&[*replica_identity]);
                out.put(&u16::try_from(columns.len()).unwrap().to_be_bytes());
                for column in columns {
                    out.put(&[column.flags])
                        .cstr(&column.name)
                        .put(&column.type_oid.to_be_bytes());
                    out.put(&column.type_modifier.to_be_bytes());
                }
            }
            Self::Type { oid, namespace, name } => {
                out.put(b"Y")
                    .put(&oid.to_be_bytes())
                    .namespace(namespace)
                    .cstr(name);
            }
            Self::Insert { oid, new } => {
                out.put(b"I").put(&oid.to_be_bytes()).row(b'N', new);
            }
            Self::Update { oid, old, new } => {
                out.put(b"U").put(&oid.to_be_bytes());
                if let Some((kind, old)) = old {
                    out.row(*kind, old);
                }
                out.row(b'N', new);
            }
            Self::Delete {
                oid,
                old: (kind, old),
            } => {
                out.put(b"D").put(&oid.to_be_bytes()).row(*kind, old);
            }
            Self::Truncate { options, oids } => {
                out.put(b"T").put(&length(oids.len())).put(&[*options]);
                for oid in oids {
                    out.put(&oid.to_be_bytes());
                }
            }
            Self::Message {
                flags,
                lsn,
                prefix,
                content,
            } => {
                out.put(b"M")
                    .put(&[*flags])
                    .put(&lsn.to_be_bytes())
                    .cstr(prefix)
                    .data(match content {
                        Cell::Text(bytes) | Cell::Binary(bytes) => bytes,
                        Cell::Null | Cell::Unchanged | Cell::Oversized { .. } => {
                            panic!("no server sends this")
                        }
                    });
            }
        }
        out.0
    }
}

impl From<Message<'_>> for Sample {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Begin(begin) => Self::Begin {
                final_lsn: begin.final_lsn.get(),
                commit_time: begin.commit_time.micros(),
                xid: begin.xid,
            },
            Message::Commit(commit) => Self::Commit {
                flags: commit.flags,
                commit_lsn: commit.commit_lsn.get(),
                end_lsn: commit.end_lsn.get(),
                commit_time: commit.commit_time.micros(),
            },
            Message::Origin(origin) => Self::Origin {
                commit_lsn: origin.commit_lsn.get(),
                name: origin.name.to_owned(),
            },
            Message::Relation(relation) => Self::Relation {
                oid: relation.oid,
                namespace: relation.namespace.to_owned(),
                name: relation.name.to_owned(),
                replica_identity: relation.replica_identity,
                columns: relation
                    .columns()
                    .map(|column| SampleColumn {
                        flags: column.flags,
                        name: column.name.to_owned(),
                        type_oid: column.type_oid,
                        type_modifier: column.type_modifier,
                    })
                    .collect(),
            },
            Message::Type(of) => Self::Type {
                oid: of.oid,
                namespace: of.namespace.to_owned(),
                name: of.name.to_owned(),
            },
            Message::Insert(insert) => Self::Insert {
                oid: insert.relation_oid,
                new: cells(insert.new),
            },
            Message::Update(update) => Self::Update {
                oid: update.relation_oid,
                old: update.old.map(old_cells),
                new: cells(update.new),
            },
            Message::Delete(delete) => Self::Delete {
                oid: delete.relation_oid,
                old: old_cells(delete.old),
            },
            Message::Truncate(truncate) => Self::Truncate {
                options: truncate.options,
                oids: truncate.oids().collect(),
            },
            Message::Logical(message) => Self::Message {
                flags: message.flags,
                lsn: message.lsn.get(),
                prefix: message.prefix.to_owned(),
                content: match message.content {
                    Content::Bytes(bytes) => Cell::Binary(bytes.to_owned()),
                    Content::Oversized { length, limit } => Cell::Oversized { length, limit },
                },
            },
        }
    }
}

fn old_cells(old: OldTuple<'_>) -> (u8, Row) {
    match old {
        OldTuple::Key(tuple) => (b'K', cells(tuple)),
        OldTuple::Row(tuple) => (b'O', cells(tuple)),
    }
}

fn cells(tuple: Tuple<'_>) -> Row {
    tuple
        .values()
        .map(|value| match value {
            Value::Null => Cell::Null,
            Value::Unchanged => Cell::Unchanged,
            Value::Text(data) => Cell::Text(data.to_owned()),
            Value::Binary(data) => Cell::Binary(data.to_owned()),
            Value::Oversized { length, limit } => Cell::Oversized { length, limit },
        })
        .collect()
}

struct Out(Vec<u8>);

impl Out {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn cstr(&mut self, text: &str) -> &mut Self {
        self.put(text.as_bytes()).put(&[0])
    }

    fn namespace(&mut self, namespace: &str) -> &mut Self {
        self.cstr(if namespace == "pg_catalog" { "" } else { namespace })
    }

    fn data(&mut self, data: &[u8]) -> &mut Self {
        self.put(&length(data.len())).put(data)
    }

    fn row(&mut self, kind: u8, row: &[Cell]) -> &mut Self {
        self.put(&[kind])
            .put(&u16::try_from(row.len()).unwrap().to_be_bytes());
        for cell in row {
            match cell {
                Cell::Null => self.put(b"n"),
                Cell::Unchanged => self.put(b"u"),
                Cell::Text(data) => self.put(b"t").data(data),
                Cell::Binary(data) => self.put(b"b").data(data),
                Cell::Oversized { length: of, limit } => self
                    .put(b"\xFF")
                    .put(&u32::try_from(*of).unwrap().to_be_bytes())
                    .put(&u32::try_from(*limit).unwrap().to_be_bytes()),
            };
        }
        self
    }
}

fn length(length: usize) -> [u8; 4] {
    i32::try_from(length).unwrap().to_be_bytes()
}

/// Any message.
pub(crate) fn any_sample() -> impl Strategy<Value = Sample> {
    let begin =
        (any::<u64>(), any::<i64>(), any::<u32>()).prop_map(|(final_lsn, commit_time, xid)| Sample::Begin {
            final_lsn,
            commit_time,
            xid,
        });
    let commit = (any::<u8>(), any::<u64>(), any::<u64>(), any::<i64>()).prop_map(
        |(flags, commit_lsn, end_lsn, commit_time)| Sample::Commit {
            flags,
            commit_lsn,
            end_lsn,
            commit_time,
        },
    );
    let origin = (any::<u64>(), name()).prop_map(|(commit_lsn, name)| Sample::Origin { commit_lsn, name });
    let relation = (
        any::<u32>(),
        namespace(),
        name(),
        any::<u8>(),
        vec(any_column(), 0..8),
    )
        .prop_map(
            |(oid, namespace, name, replica_identity, columns)| Sample::Relation {
                oid,
                namespace,
                name,
                replica_identity,
                columns,
            },
        );
    let of_type = (any::<u32>(), namespace(), name()).prop_map(|(oid, namespace, name)| Sample::Type {
        oid,
        namespace,
        name,
    });
    let insert = (any::<u32>(), row()).prop_map(|(oid, new)| Sample::Insert { oid, new });
    let update = (any::<u32>(), prop::option::of(old_row()), row())
        .prop_map(|(oid, old, new)| Sample::Update { oid, old, new });
    let delete = (any::<u32>(), old_row()).prop_map(|(oid, old)| Sample::Delete { oid, old });
    let truncate =
        (any::<u8>(), vec(any::<u32>(), 0..5)).prop_map(|(options, oids)| Sample::Truncate { options, oids });
    let message = (any::<u8>(), any::<u64>(), name(), data()).prop_map(|(flags, lsn, prefix, content)| {
        Sample::Message {
            flags,
            lsn,
            prefix,
            content: Cell::Binary(content),
        }
    });
    prop_oneof![
        begin, commit, origin, relation, of_type, insert, update, delete, truncate, message
    ]
}

fn any_column() -> impl Strategy<Value = SampleColumn> {
    (any::<u8>(), name(), any::<u32>(), any::<i32>()).prop_map(|(flags, name, type_oid, type_modifier)| {
        SampleColumn {
            flags,
            name,
            type_oid,
            type_modifier,
        }
    })
}

fn name() -> impl Strategy<Value = String> {
    r"[^\x00]{0,12}"
}

fn namespace() -> impl Strategy<Value = String> {
    prop_oneof![Just("pg_catalog".to_owned()), r"[^\x00]{1,12}"]
}

fn old_row() -> impl Strategy<Value = (u8, Row)> {
    (prop_oneof![Just(b'K'), Just(b'O')], row())
}

fn row() -> impl Strategy<Value = Row> {
    let cell = prop_oneof![
        Just(Cell::Null),
        Just(Cell::Unchanged),
        data().prop_map(Cell::Text),
        data().prop_map(Cell::Binary)
    ];
    vec(cell, 0..10)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..24)
}
