//! Reads configuration structs out of their source, and renders an example file from them.
//!
//! rustfmt keeps the sources in one shape: `pub struct NAME {`, doc comments, `pub FIELD: TYPE,`,
//! `}`; so lines are enough to read.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

const COLUMNS_MAX: usize = 100;

struct Field {
    name: String,
    kind: String,
    /// Paragraphs of its doc comment, without line breaks.
    doc: Vec<String>,
}

pub(crate) struct Structs(BTreeMap<String, Vec<Field>>);

impl Structs {
    /// Structs of the daemon's own files, and of those whose sections it borrows.
    pub(crate) fn read(own: &[PathBuf], borrowed: &[PathBuf]) -> Self {
        let mut structs = Self(BTreeMap::new());
        for path in own.iter().chain(borrowed) {
            let text = fs::read_to_string(path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            structs.take(&text);
        }
        structs
    }

    /// The example with every key of `Config`, its values taken from `text`.
    ///
    /// # Errors
    ///
    /// Names the first section or key that `text` has no value for.
    pub(crate) fn render(&self, text: &str) -> Result<String, String> {
        let values = Values::read(text);
        let mut out = header(text);
        for section in &self.0["Config"] {
            let is_list = section.kind.starts_with("Vec<");
            let (open, close) = if is_list { ("[[", "]]") } else { ("[", "]") };
            let heading = format!("{open}{}{close}", section.name);
            out.push('\n');
            comment(&section.doc, &mut out);
            out.push_str(&format!("{heading}\n"));
            self.render_keys(section, &heading, &values, &mut out)?;
        }
        Ok(out)
    }

    fn render_keys(
        &self,
        section: &Field,
        heading: &str,
        values: &Values,
        out: &mut String,
    ) -> Result<(), String> {
        let name = section
            .kind
            .trim_start_matches("Vec<")
            .trim_end_matches('>');
        let name = name.rsplit("::").next().expect("a split has a last part");
        let fields = self
            .0
            .get(name)
            .ok_or_else(|| format!("no struct {name} was read"))?;
        for (index, field) in fields.iter().enumerate() {
            if index > 0 {
                out.push('\n');
            }
            let value = values
                .of(heading, &field.name)
                .ok_or_else(|| format!("{heading} has no `{}`", field.name))?;
            comment(&field.doc, out);
            out.push_str(&format!("{} = {value}\n", field.name));
        }
        Ok(())
    }

    fn take(&mut self, text: &str) {
        let mut fields: Option<(String, Vec<Field>)> = None;
        let mut doc: Vec<String> = Vec::new();
        for line in text.lines() {
            let inner = line.trim();
            if let Some(name) = line
                .strip_prefix("pub struct ")
                .and_then(|l| l.strip_suffix(" {"))
            {
                fields = Some((name.to_owned(), Vec::new()));
            } else if line == "}" {
                self.0.extend(fields.take());
            } else if let Some(said) = inner.strip_prefix("///") {
                doc.push(said.trim().to_owned());
                continue;
            } else if inner.starts_with("#[") {
                continue;
            } else if let (Some((_, list)), Some((name, kind))) = (&mut fields, field(inner)) {
                list.push(Field {
                    name,
                    kind,
                    doc: paragraphs(&doc),
                });
            }
            doc.clear();
        }
    }
}

/// Values as the example spells them, by section heading and key.
struct Values(BTreeMap<(String, String), String>);

impl Values {
    fn read(text: &str) -> Self {
        let mut heading = String::new();
        let mut found = BTreeMap::new();
        for line in text.lines() {
            if line.starts_with('[') {
                line.trim_end().clone_into(&mut heading);
            } else if let (false, Some((key, value))) =
                (line.starts_with('#'), line.split_once(" = "))
            {
                found.insert((heading.clone(), key.to_owned()), value.to_owned());
            }
        }
        Self(found)
    }

    fn of(&self, heading: &str, key: &str) -> Option<&str> {
        self.0
            .get(&(heading.to_owned(), key.to_owned()))
            .map(String::as_str)
    }
}

fn field(line: &str) -> Option<(String, String)> {
    let (name, kind) = line
        .strip_prefix("pub ")?
        .strip_suffix(',')?
        .split_once(": ")?;
    Some((name.to_owned(), kind.to_owned()))
}

/// The comment an example opens with is its own: it speaks to operators.
fn header(text: &str) -> String {
    let lines = text.lines().take_while(|line| line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

fn paragraphs(doc: &[String]) -> Vec<String> {
    let joined = doc.split(String::is_empty).map(|lines| lines.join(" "));
    joined
        .filter(|paragraph| !paragraph.is_empty())
        .map(|text| without_links(&text))
        .collect()
}

/// Drops the brackets of rustdoc's links, as in [`Name`].
fn without_links(text: &str) -> String {
    text.replace("[`", "`").replace("`]", "`")
}

fn comment(paragraphs: &[String], out: &mut String) {
    for (index, paragraph) in paragraphs.iter().enumerate() {
        if index > 0 {
            out.push_str("#\n");
        }
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > COLUMNS_MAX {
                out.push_str(&format!("{line}\n"));
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        out.push_str(&format!("{line}\n"));
    }
}
