//! Tables and types: what the rows that follow look like.

use crate::decode::{DecodeError, Reader};

/// What a table looks like from here on.
///
/// Sent before the table's first row in a session and again before the next row after a change, so rows are
/// mapped by the newest Relation of their oid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The table's oid, which its rows refer to.
    pub oid: u32,
    /// The schema.
    pub namespace: &'a str,
    /// The table's name within the schema.
    pub name: &'a str,
    /// `pg_class.relreplident`: `d`efault, `n`othing, `f`ull or `i`ndex.
    pub replica_identity: u8,
    column_count: u16,
    columns: &'a [u8],
}

impl<'a> Relation<'a> {
    /// How many columns a row has.
    #[must_use]
    pub const fn column_count(&self) -> u16 {
        self.column_count
    }

    /// The columns, in the order of a row's values.
    #[must_use]
    pub const fn columns(&self) -> Columns<'a> {
        Columns {
            reader: Reader::new("Relation", self.columns),
            left: self.column_count,
        }
    }

    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let oid = reader.u32("oid")?;
        let namespace = namespace(&mut reader)?;
        let name = reader.cstr("name")?;
        let replica_identity = reader.u8("replica identity")?;
        let column_count = reader.u16("column count")?;
        let columns =
            reader.span(|reader| (0..column_count).try_for_each(|_| Column::read(reader).map(drop)))?;
        reader.finish()?;
        Ok(Self {
            oid,
            namespace,
            name,
            replica_identity,
            column_count,
            columns,
        })
    }
}

/// One column of a [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// 1 where the column is part of the replica identity's key, else 0.
    pub flags: u8,
    /// The column's name.
    pub name: &'a str,
    /// The data type's oid, see [`Type`] for those that are not built in.
    pub type_oid: u32,
    /// `pg_attribute.atttypmod`, -1 where the type has no modifier.
    pub type_modifier: i32,
}

impl<'a> Column<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            flags: reader.u8("column flags")?,
            name: reader.cstr("column name")?,
            type_oid: reader.u32("column type")?,
            type_modifier: reader.i32("column type modifier")?,
        })
    }
}

/// Iterates over the columns of a [`Relation`].
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    reader: Reader<'a>,
    left: u16,
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // Never an error: `Relation::read` has been here.
        Column::read(&mut self.reader).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Columns<'_> {}

/// The name of a data type that is not built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// The type's oid, as in [`Column::type_oid`].
    pub oid: u32,
    /// The schema.
    pub namespace: &'a str,
    /// The type's name within the schema.
    pub name: &'a str,
}

impl<'a> Type<'a> {
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let oid = reader.u32("oid")?;
        let namespace = namespace(&mut reader)?;
        let name = reader.cstr("name")?;
        reader.finish()?;
        Ok(Self { oid, namespace, name })
    }
}

/// "Namespace (empty string for `pg_catalog`)":
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
fn namespace<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    Ok(match reader.cstr("namespace")? {
        "" => "pg_catalog",
        namespace => namespace,
    })
}
