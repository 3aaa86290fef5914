//! Reading the Prometheus and OpenMetrics text formats.

use std::collections::BTreeMap;

/// One line of a scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The full name, suffixes such as `_total` and `_bucket` included.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// One scrape.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples(Vec<Sample>);

impl Samples {
    /// Reads a scrape; lines that are no samples (comments, `# EOF`) are passed over.
    pub fn parse(text: &str) -> Samples {
        Samples(text.lines().filter_map(sample).collect())
    }

    /// All samples.
    pub fn all(&self) -> &[Sample] {
        &self.0
    }

    /// The value of the first sample that has this name and at least these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.matching(name, labels).next().map(|sample| sample.value)
    }

    /// The sum over all samples with this name and at least these labels; 0 when there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|sample| sample.value).sum()
    }

    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| {
            let has =
                |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|found| found == value);
            sample.name == name && labels.iter().all(has)
        })
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (BTreeMap::new(), rest),
    };
    // A timestamp or an exemplar may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads `key="value",…}`, with the escapes `\\`, `\"` and `\n`; returns what follows.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(key.to_owned(), value);
        text = rest.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_escapes_and_exemplars_are_read() {
        let samples = Samples::parse(
            "# TYPE a counter\na_total{x=\"1\",y=\"q\\\"},{\\n\"} 3 1700000000 # {id=\"7\"} 1\nb 0.5\na_total{x=\"2\"} 4\n# EOF\n",
        );
        assert_eq!(samples.all().len(), 3);
        assert_eq!(samples.value("a_total", &[("y", "q\"},{\n")]), Some(3.0));
        assert_eq!(samples.value("b", &[]), Some(0.5));
        assert_eq!(samples.sum("a_total", &[]), 7.0);
        assert_eq!(samples.value("a_total", &[("x", "3")]), None);
    }
}
