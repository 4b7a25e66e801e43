//! What a daemon exposes on `/metrics`, as samples that a test can ask for.
//!
//! Reads the Prometheus text format, version 0.0.4: one sample a line, `name{label="value"} 1`;
//! comments start with `#`. A test asserts on sums over labels, so that is the one question here.

use std::collections::BTreeMap;

/// All samples of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Exposition {
    /// Reads the text; lines that are no samples are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self {
            samples: text.lines().filter_map(sample).collect(),
        }
    }

    /// Sum of the samples of `name` that carry all of `labels`; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &&Sample| {
            let has = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).is_some_and(|found| found == value)
            };
            sample.name == name && labels.iter().all(has)
        };
        self.samples
            .iter()
            .filter(carries)
            .map(|sample| sample.value)
            .sum()
    }

    /// Sums of the samples of `name` by the value of one label.
    #[must_use]
    pub fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.name == name) {
            if let Some(key) = sample.labels.get(label) {
                *sums.entry(key.clone()).or_default() += sample.value;
            }
        }
        sums
    }

    /// Names that occur, once each: a test that asks for a wrong name can say which there are.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.samples.iter().map(|s| s.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = match line.rfind('}') {
        Some(end) => line.split_at(end + 1),
        None => line.split_at(line.find(' ')?),
    };
    // A timestamp may follow the value.
    let value = value.split_whitespace().next()?.parse().ok()?;
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, labels(rest.strip_suffix('}')?)?),
        None => (series, BTreeMap::new()),
    };
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Labels between the braces; values may hold escaped quotes, backslashes and newlines.
fn labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
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
        labels.insert(key.trim_start_matches([',', ' ']).to_owned(), value);
        rest = after[end + 1..].trim_start_matches([',', ' ']);
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP relay_datagrams_total Datagrams.
# TYPE relay_datagrams_total counter
relay_datagrams_total{face="client",worker="0"} 12
relay_datagrams_total{face="client",worker="1"} 30 1700000000000
relay_datagrams_total{face="transceiver",worker="0"} 5
odd{text="a \"quoted\" } brace, and \\"} 1e3
flows 7

not a sample
"#;

    #[test]
    fn sums_over_the_labels_that_are_not_asked_for() {
        let seen = Exposition::parse(TEXT);
        assert_eq!(
            seen.sum("relay_datagrams_total", &[("face", "client")]),
            42.0
        );
        assert_eq!(
            seen.sum(
                "relay_datagrams_total",
                &[("face", "client"), ("worker", "1")]
            ),
            30.0
        );
        assert_eq!(seen.sum("relay_datagrams_total", &[]), 47.0);
        assert_eq!(seen.sum("flows", &[]), 7.0);
        assert_eq!(seen.sum("flows_total", &[]), 0.0);
    }

    #[test]
    fn groups_by_a_label() {
        let by = Exposition::parse(TEXT).by("relay_datagrams_total", "worker");
        assert_eq!(
            by,
            BTreeMap::from([("0".to_owned(), 17.0), ("1".to_owned(), 30.0)])
        );
    }

    #[test]
    fn reads_escaped_label_values_and_passes_over_the_rest() {
        let seen = Exposition::parse(TEXT);
        assert_eq!(
            seen.sum("odd", &[("text", "a \"quoted\" } brace, and \\")]),
            1000.0
        );
        assert_eq!(seen.names(), ["flows", "odd", "relay_datagrams_total"]);
    }
}
