//! The configuration as a tree whose every value knows its origin, and a serde deserialiser over it
//! whose errors carry key, value and origin.
//!
//! A value from the environment is only text; what it means is decided by the type that asks for
//! it, so no quoting rules leak into shells and unit files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Expected, IntoDeserializer, Visitor};
use toml::de::{DeTable, DeValue};

use super::Origin;

/// Longest piece of a value repeated in an error, in characters: enough to recognise it.
const SHOWN_VALUE_CHARS_MAX: usize = 80;

/// One value and where it came from.
#[derive(Debug, Clone)]
pub(super) struct Node {
    value: Value,
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Value {
    Table(BTreeMap<String, Node>),
    Array(Vec<Node>),
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    /// Text of an environment variable, typed by whoever asks.
    Variable(String),
}

/// Text that is not TOML.
#[derive(Debug)]
pub(super) struct Syntax {
    pub(super) line: usize,
    pub(super) problem: String,
}

/// What deserialisation found wrong, gathered on the way out: innermost origin and value, and the
/// key from the inside out.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) key: Vec<String>,
    pub(super) value: Option<String>,
    pub(super) problem: String,
    pub(super) remedy: String,
    /// Boxed, as an error is carried through every step of a deserialisation.
    pub(super) origin: Option<Box<Origin>>,
}

/// Parses a whole file.
pub(super) fn parse(text: &str, path: &Path) -> Result<Node, Syntax> {
    let line_at = |offset: usize| 1 + text[..offset.min(text.len())].matches('\n').count();
    let table = DeTable::parse(text).map_err(|error| Syntax {
        line: line_at(error.span().map_or(0, |span| span.start)),
        problem: error.message().replace('\n', ", "),
    })?;
    let origin_at = |offset| Origin::File {
        path: path.to_owned(),
        line: line_at(offset),
    };
    let origin = origin_at(0);
    Ok(Node {
        value: Value::Table(convert_table(table.get_ref(), &origin_at)),
        origin,
    })
}

fn convert_table(
    table: &DeTable<'_>,
    origin_at: &dyn Fn(usize) -> Origin,
) -> BTreeMap<String, Node> {
    let convert_entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let origin = origin_at(key.span().start);
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        (
            key.to_string(),
            Node {
                value: convert(value.get_ref(), origin_at),
                origin,
            },
        )
    };
    table.iter().map(convert_entry).collect()
}

fn convert(value: &DeValue<'_>, origin_at: &dyn Fn(usize) -> Origin) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            // Beyond 64 bits: kept as written, so that the error about its type shows it.
            Err(_) => Value::Text(number.as_str().to_owned()),
        },
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::Text(number.as_str().to_owned()),
        },
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Datetime(datetime) => Value::Text(datetime.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| Node {
                    value: convert(item.get_ref(), origin_at),
                    origin: origin_at(item.span().start),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(convert_table(table, origin_at)),
    }
}

impl Node {
    /// The tree of no file at all.
    pub(super) fn empty() -> Self {
        Self {
            value: Value::Table(BTreeMap::new()),
            origin: Origin::Default,
        }
    }

    /// Puts the text of a variable at a key, making tables on the way. False if the way leads
    /// through something that is not a table, or ends on a table that has keys of its own.
    pub(super) fn lay(&mut self, segments: &[&str], text: &str, origin: &Origin) -> bool {
        let Some((first, rest)) = segments.split_first() else {
            let has_keys = matches!(&self.value, Value::Table(table) if !table.is_empty());
            self.value = Value::Variable(text.to_owned());
            self.origin = origin.clone();
            return !has_keys;
        };
        let Value::Table(table) = &mut self.value else {
            return false;
        };
        let child = table.entry((*first).to_owned()).or_insert_with(|| Self {
            value: Value::Table(BTreeMap::new()),
            origin: origin.clone(),
        });
        child.lay(rest, text, origin)
    }

    /// Origin of the value at a key, or of the default where nobody gave one.
    pub(super) fn origin_of<'a>(&self, mut segments: impl Iterator<Item = &'a str>) -> Origin {
        let Some(segment) = segments.next() else {
            return self.origin.clone();
        };
        let (name, index) = match segment.strip_suffix(']').and_then(|s| s.split_once('[')) {
            Some((name, index)) => (name, index.parse::<usize>().ok()),
            None => (segment, None),
        };
        let child = match &self.value {
            Value::Table(table) => table.get(name),
            _ => None,
        };
        match (child, index) {
            (None, _) => Origin::Default,
            (
                Some(Self {
                    value: Value::Array(items),
                    ..
                }),
                Some(index),
            ) => items
                .get(index)
                .map_or(Origin::Default, |item| item.origin_of(segments)),
            (Some(child), _) => child.origin_of(segments),
        }
    }

    /// The value as an error shows it; nothing for a table.
    fn shown(&self) -> Option<String> {
        let text = match &self.value {
            Value::Table(_) => return None,
            Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(Self::shown).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Text(text) | Value::Variable(text) => format!("{text:?}"),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(boolean) => boolean.to_string(),
        };
        match text.char_indices().nth(SHOWN_VALUE_CHARS_MAX) {
            Some((cut, _)) => Some(format!("{}…", &text[..cut])),
            None => Some(text),
        }
    }

    /// Adds what only this node knows to a fault found in it.
    fn locate(&self, mut fault: Fault) -> Fault {
        if fault.origin.is_none() {
            fault.origin = Some(Box::new(self.origin.clone()));
            fault.value = fault.value.or_else(|| self.shown());
        }
        fault
    }

    /// The text of a variable read as TOML, for lists and tables.
    fn parse_variable(&self, text: &str) -> Result<Self, Fault> {
        let origin_at = |_| self.origin.clone();
        match DeValue::parse(text) {
            Ok(value) => Ok(Self {
                value: convert(value.get_ref(), &origin_at),
                origin: self.origin.clone(),
            }),
            Err(error) => Err(self.locate(Fault::new(
                format!("not valid TOML: {}", error.message().replace('\n', ", ")),
                "write it as in the file",
            ))),
        }
    }

    fn items(&self) -> Result<Vec<Self>, Fault> {
        match &self.value {
            Value::Array(items) => Ok(items.clone()),
            Value::Variable(text) if text.trim_start().starts_with('[') => {
                self.parse_variable(text.trim())?.items()
            }
            Value::Variable(text) => Ok(text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| Self {
                    value: Value::Variable(item.to_owned()),
                    origin: self.origin.clone(),
                })
                .collect()),
            _ => Err(self.locate(Fault::expected("a list"))),
        }
    }

    fn entries(&self) -> Result<BTreeMap<String, Self>, Fault> {
        match &self.value {
            Value::Table(table) => Ok(table.clone()),
            Value::Variable(text) if text.trim_start().starts_with('{') => {
                self.parse_variable(text.trim())?.entries()
            }
            _ => Err(self.locate(Fault::expected("a table"))),
        }
    }

    fn visit_entries<'de, V: Visitor<'de>>(
        &self,
        known: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let entries = self.entries()?;
        if let Some(known) = known {
            for (key, node) in &entries {
                if !known.contains(&key.as_str()) {
                    return Err(node.locate(Fault::unknown_key(key, known)));
                }
            }
        }
        let walk = Entries {
            entries: entries.into_iter(),
            pending: None,
        };
        visitor.visit_map(walk).map_err(|fault| self.locate(fault))
    }
}

impl Fault {
    fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            key: Vec::new(),
            value: None,
            problem: problem.into(),
            remedy: remedy.into(),
            origin: None,
        }
    }

    fn expected(what: &str) -> Self {
        Self::new(format!("expected {what}"), "write such a value")
    }

    fn unknown_key(key: &str, known: &'static [&'static str]) -> Self {
        let mut fault = Self::new("unknown key", "");
        fault.key.push(key.to_owned());
        fault.remedy = format!("known keys here are: {}", known.join(", "));
        fault
    }

    /// Prepends the key of the enclosing table.
    fn under(mut self, key: &str) -> Self {
        if self.key.len() == 1 && self.problem == "unknown key" {
            self.remedy = self
                .remedy
                .replacen("keys here", &format!("keys of {key}"), 1);
        }
        match self.key.first_mut() {
            Some(first) if first.starts_with('[') => *first = format!("{key}{first}"),
            _ => self.key.insert(0, key.to_owned()),
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let problem = message.to_string();
        let remedy = if problem.contains("socket address") {
            "write ADDRESS:PORT, such as 127.0.0.1:3478 or [::1]:3478"
        } else if problem.contains("IP address") {
            "write an address, such as 127.0.0.1 or ::1"
        } else {
            "correct the value"
        };
        Self::new(problem, remedy)
    }

    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::expected(&in_words(&expected.to_string()))
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::expected(&in_words(&expected.to_string()))
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self::new(
            "not a known choice",
            format!("use one of: {}", known.join(", ")),
        )
    }

    fn missing_field(field: &'static str) -> Self {
        let mut fault = Self::new("missing", "add it");
        fault.key.push(field.to_owned());
        fault
    }
}

/// Serde names Rust's types; an operator thinks in ranges.
fn in_words(expected: &str) -> String {
    match expected {
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "u16" => format!("a whole number from 0 to {}", u16::MAX),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, not negative".to_owned(),
        "i64" | "i32" => "a whole number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "f64" | "f32" => "a number".to_owned(),
        other => other.to_owned(),
    }
}

/// Walks a table, adding each key to the faults found under it.
struct Entries {
    entries: std::collections::btree_map::IntoIter<String, Node>,
    pending: Option<(String, Node)>,
}

impl<'de> de::MapAccess<'de> for Entries {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some((key, node)) = self.entries.next() else {
            return Ok(None);
        };
        let found = seed
            .deserialize(StrDeserializer::<Fault>::new(&key))
            .map_err(|fault| node.locate(fault).under(&key))?;
        self.pending = Some((key, node));
        Ok(Some(found))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let (key, node) = self
            .pending
            .take()
            .expect("invariant: a value is asked after its key");
        seed.deserialize(&node)
            .map_err(|fault| node.locate(fault).under(&key))
    }
}

/// Walks a list, adding each index to the faults found under it.
struct Items {
    items: std::vec::IntoIter<Node>,
    index: usize,
}

impl<'de> de::SeqAccess<'de> for Items {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some(node) = self.items.next() else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        seed.deserialize(&node)
            .map(Some)
            .map_err(|fault| node.locate(fault).under(&format!("[{index}]")))
    }
}

/// Asks for a number or a boolean: text of a variable is parsed as what is asked for.
macro_rules! deserialize_parsed {
    ($($method:ident $visit:ident $kind:ty, $name:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match &self.value {
                Value::Variable(text) => match text.trim().parse::<$kind>() {
                    Ok(parsed) => visitor.$visit(parsed),
                    Err(_) => Err(self.locate(Fault::expected(&in_words($name)))),
                },
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &Node {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Table(_) => return self.visit_entries(None, visitor),
            Value::Array(_) => return self.deserialize_seq(visitor),
            Value::Text(text) | Value::Variable(text) => visitor.visit_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
        }
        .map_err(|fault: Fault| self.locate(fault))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let items = Items {
            items: self.items()?.into_iter(),
            index: 0,
        };
        visitor.visit_seq(items).map_err(|fault| self.locate(fault))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit_entries(None, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.visit_entries(Some(fields), visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Variable(text) if text.is_empty() => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Text(text) | Value::Variable(text) => visitor
                .visit_enum(IntoDeserializer::<Fault>::into_deserializer(text.as_str()))
                .map_err(|fault: Fault| self.locate(fault)),
            _ => Err(self.locate(Fault::expected(&format!("one of: {}", variants.join(", "))))),
        }
    }

    deserialize_parsed! {
        deserialize_bool visit_bool bool, "a boolean";
        deserialize_u8 visit_u8 u8, "u8";
        deserialize_u16 visit_u16 u16, "u16";
        deserialize_u32 visit_u32 u32, "u32";
        deserialize_u64 visit_u64 u64, "u64";
        deserialize_i32 visit_i32 i32, "i32";
        deserialize_i64 visit_i64 i64, "i64";
        deserialize_f64 visit_f64 f64, "f64";
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u128 f32 char str string bytes byte_buf unit unit_struct tuple tuple_struct
        identifier ignored_any
    }
}
