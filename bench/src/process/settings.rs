//! Single keys of a daemon's configuration, set over a file that is made for it.

use thiserror::Error;

/// `section.key` and its value in TOML's notation.
pub type Setting = (String, String);

/// Why a setting is none.
#[derive(Debug, Error)]
pub enum SettingError {
    /// It is not `section.key=value`.
    #[error("{0}: write section.key=value")]
    Shape(String),
    /// The value is no TOML.
    #[error("{name}: {value} is not a TOML value")]
    Value {
        /// The key.
        name: String,
        /// The value.
        value: String,
    },
    /// The file to set it over is no TOML, or has no such section.
    #[error("{0}")]
    Base(String),
}

/// Takes `section.key=value` apart.
///
/// # Errors
/// When it is nothing like that.
pub fn parse(text: &str) -> Result<Setting, SettingError> {
    let shape = || SettingError::Shape(text.to_owned());
    let (name, value) = text.split_once('=').ok_or_else(shape)?;
    name.split_once('.').ok_or_else(shape)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The configuration `text` with `settings` in it.
///
/// # Errors
/// When a setting cannot be read, or has no place.
pub fn apply(text: &str, settings: &[Setting]) -> Result<String, SettingError> {
    let base = |error: &dyn std::fmt::Display| SettingError::Base(error.to_string());
    let mut table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| base(&error))?;
    for (name, value) in settings {
        let (section, key) = name
            .split_once('.')
            .ok_or_else(|| SettingError::Shape(name.clone()))?;
        let parsed: toml::Table =
            format!("it = {value}")
                .parse()
                .map_err(|_| SettingError::Value {
                    name: name.clone(),
                    value: value.clone(),
                })?;
        table
            .entry(section)
            .or_insert_with(|| toml::Table::new().into())
            .as_table_mut()
            .ok_or_else(|| base(&format!("{name}: {section} is no section")))?
            .insert(key.to_owned(), parsed["it"].clone());
    }
    toml::to_string(&table).map_err(|error| base(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_keys_in_old_and_new_sections() {
        let settings =
            ["workers.count=2", "log.level=\"debug\""].map(|text| parse(text).expect("set"));
        let text = apply("[workers]\ncount = 1\nspin = false\n", &settings).expect("applied");
        let table: toml::Table = text.parse().expect("TOML");
        assert_eq!(table["workers"]["count"].as_integer(), Some(2));
        assert_eq!(table["workers"]["spin"].as_bool(), Some(false));
        assert_eq!(table["log"]["level"].as_str(), Some("debug"));
    }

    #[test]
    fn names_the_setting_that_is_none() {
        assert!(parse("workers.count").is_err() && parse("count=1").is_err());
        let wrong = [("workers.count".to_owned(), "two".to_owned())];
        let error = apply("", &wrong).expect_err("no value").to_string();
        assert!(
            error.contains("workers.count: two is not a TOML value"),
            "{error}"
        );
    }
}
