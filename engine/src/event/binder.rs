//! What the configuration names, found in a relation.

use super::columns::{Columns, Source};
use super::mapping::MappingError;
use crate::pgoutput::Relation;
use crate::route::{Bound, BoundTemplate, Setting, Template};

/// Finds columns in a relation.
pub(crate) struct Binder<'a> {
    pub(crate) relation: &'a Relation<'a>,
    pub(crate) columns: &'a Columns,
}

/// A column that was found in a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundColumn {
    pub(crate) at: usize,
    pub(crate) name: String,
}

/// A field's source that was found in a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BoundSource {
    Column(BoundColumn),
    Constant(String),
}

impl Binder<'_> {
    pub(super) fn table(&self) -> String {
        format!("{}.{}", self.relation.namespace, self.relation.name)
    }

    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.relation.columns().position(|column| column.name == name)
    }

    pub(super) fn column(&self, field: &'static str, name: &str) -> Result<BoundColumn, MappingError> {
        let at = self.index_of(name).ok_or_else(|| MappingError::ColumnMissing {
            table: self.table(),
            column: name.to_owned(),
            field,
        })?;
        Ok(BoundColumn {
            at,
            name: name.to_owned(),
        })
    }

    /// A field that every event has: without a source it is a column of its own name.
    pub(super) fn source(&self, field: &'static str, source: &Source) -> Result<BoundSource, MappingError> {
        Ok(match source {
            Source::Constant(text) => BoundSource::Constant(text.clone()),
            Source::Column(name) | Source::ColumnIfThere(name) => {
                BoundSource::Column(self.column(field, name)?)
            }
            Source::Absent => BoundSource::Column(self.column(field, field)?),
        })
    }

    /// The column of a field that an event need not have.
    pub(crate) fn optional_column(
        &self,
        field: &'static str,
        source: &Source,
    ) -> Result<Option<BoundColumn>, MappingError> {
        match source {
            Source::Column(name) => self.column(field, name).map(Some),
            Source::ColumnIfThere(name) => Ok(self.column(field, name).ok()),
            Source::Constant(_) | Source::Absent => Ok(None),
        }
    }

    /// What a name in a template or a condition means: the event's field of this name before a column that is called so.
    pub(crate) fn resolve(&self, name: &str) -> Option<Bound> {
        match self.columns.source_of(name) {
            Source::Constant(text) => Some(Bound::Constant(text)),
            Source::Column(column) | Source::ColumnIfThere(column) => {
                self.index_of(&column).map(Bound::Column)
            }
            Source::Absent => None,
        }
    }

    /// A template of `setting`.
    pub(crate) fn template(
        &self,
        template: &Template,
        setting: Setting,
    ) -> Result<BoundTemplate, MappingError> {
        let bound = template.bind(|name| self.resolve(name));
        bound.map_err(|column| self.missing(setting, column))
    }

    /// The error that a setting names a column that is not there.
    pub(crate) fn missing(&self, setting: Setting, column: String) -> MappingError {
        MappingError::TemplateColumnMissing {
            table: self.table(),
            column,
            setting,
        }
    }
}
