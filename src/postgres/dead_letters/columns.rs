//! A row's values as text, in a JSON object that keeps their order.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The columns of a row in their order: names, and values in pgoutput's own text, or `None` for NULL. A column that
/// was too large to be read is left out.
///
/// As JSON it is an object of strings and nulls, so nothing is parsed and printed again.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Columns(pub Vec<(String, Option<String>)>);

impl Columns {
    /// The value of a column; `None` if there is no such column, `Some(None)` if it is NULL.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Option<&str>> {
        let (_, value) = self.0.iter().find(|(column, _)| column == name)?;
        Some(value.as_deref())
    }
}

/// Shows names only: values are payloads.
impl fmt::Debug for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Serialize for Columns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Columns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings and nulls")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(Columns(columns))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn columns(columns: &[(&str, Option<&str>)]) -> Columns {
        let owned = columns
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        Columns(owned.collect())
    }

    #[test]
    fn order_nulls_and_text_are_kept() {
        let row = columns(&[
            ("payload", Some("{\"n\": 1.50}")),
            ("id", Some("7")),
            ("headers", None),
        ]);
        let json = serde_json::to_string(&row).unwrap();
        assert_eq!(json, r#"{"payload":"{\"n\": 1.50}","id":"7","headers":null}"#);
        assert_eq!(serde_json::from_str::<Columns>(&json).unwrap(), row);
        assert_eq!(row.value("headers"), Some(None));
        assert_eq!(row.value("other"), None);
    }

    #[test]
    fn what_is_no_object_of_strings_is_refused() {
        for json in ["[]", "{\"a\": 1}", "{\"a\": {}}", "null", "{"] {
            assert!(serde_json::from_str::<Columns>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn debug_shows_no_values() {
        let row = columns(&[("payload", Some("secret"))]);
        assert_eq!(format!("{row:?}"), "[\"payload\"]");
    }

    proptest! {
        #[test]
        fn every_text_survives(values in proptest::collection::vec(any::<(String, Option<String>)>(), 0..8)) {
            let row = Columns(values);
            let json = serde_json::to_string(&row).unwrap();
            prop_assert_eq!(serde_json::from_str::<Columns>(&json).unwrap(), row);
        }
    }
}
