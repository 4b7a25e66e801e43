//! Configuration: one TOML file and, for every key, a twin in the environment.
//!
//! The twin of `[media] workers` under the prefix `SYRINX_RELAY` is `SYRINX_RELAY__MEDIA__WORKERS`;
//! it wins over the file. Lists may be written as TOML (`["a", "b"]`) or with commas (`a, b`).
//!
//! An operator meets this module only when something is wrong, so its real product is the error:
//! always one line, naming where the value came from, the key, the value, what is wrong with it
//! and what to do. That needs the origin of every value at hand while it is deserialised, which is
//! why the tree and its deserialiser are ours (`node`) rather than a general configuration crate,
//! whose errors name neither the environment variable nor the line.
//!
//! Called once at start by each daemon's `main`, and by `--check`.

pub mod keys;
mod node;
pub mod workers;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use node::{Fault, Node};

/// What a configuration must hold beyond the type of each key: ranges, and keys that need another.
pub trait Validate {
    /// Says which key is wrong first; [`load`] adds where its value came from.
    fn validate(&self) -> Result<(), Invalid>;
}

/// A key whose value has the right type and still cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    key: String,
    value: String,
    problem: String,
    remedy: String,
}

impl Invalid {
    /// `key` is dotted, as in the file (`media.workers`); `problem` and `remedy` are clauses of one
    /// sentence, without a full stop.
    pub fn new(
        key: &str,
        value: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            key: key.to_owned(),
            value: value.to_string(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line, counted from 1, of the configuration file.
    File {
        /// The file as it was named on the command line.
        path: PathBuf,
        /// Line of the key or of the value.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// Nobody gave it: the default of the key.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Why there is no configuration. Every one displays as a single line that ends in the remedy.
///
/// Causes are told in that line, and are therefore no [`source`](std::error::Error::source): a
/// printed chain of errors would say them twice.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "{path}: cannot be read: {cause}; check the path given with --config and that this user \
         may read it"
    )]
    Read {
        /// The file as it was named on the command line.
        path: String,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path}:{line}: not valid TOML: {problem}; correct this line")]
    Syntax {
        /// The file as it was named on the command line.
        path: String,
        /// Line, counted from 1.
        line: usize,
        /// What the parser expected.
        problem: String,
    },
    /// A key is unknown, missing, of the wrong type or out of range.
    #[error("{origin}: {key}{value}: {problem}; {remedy}")]
    Key {
        /// File and line, or variable.
        origin: Box<Origin>,
        /// Dotted key.
        key: String,
        /// ` = value`, or empty where there is none.
        value: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

/// Reads `path` if there is one, lays the variables that start with `{prefix}__` over it, and
/// validates the result. Unknown keys are errors in the file and in the environment alike.
///
/// # Errors
///
/// The first fault found, as one line.
pub fn load<T>(path: Option<&Path>, prefix: &str) -> Result<T, ConfigError>
where
    T: DeserializeOwned + Validate,
{
    load_with(path, prefix, std::env::vars_os())
}

/// [`load`] with the environment as an argument.
fn load_with<T>(
    path: Option<&Path>,
    prefix: &str,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<T, ConfigError>
where
    T: DeserializeOwned + Validate,
{
    let mut root = match path {
        Some(path) => read_file(path)?,
        None => Node::empty(),
    };
    lay_variables(&mut root, prefix, variables)?;
    let loaded = T::deserialize(&root).map_err(ConfigError::from)?;
    loaded.validate().map_err(|invalid| invalid.at(&root))?;
    Ok(loaded)
}

fn read_file(path: &Path) -> Result<Node, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|cause| ConfigError::Read {
        path: path.display().to_string(),
        cause,
    })?;
    node::parse(&text, path).map_err(|syntax| ConfigError::Syntax {
        path: path.display().to_string(),
        line: syntax.line,
        problem: syntax.problem,
    })
}

fn lay_variables(
    root: &mut Node,
    prefix: &str,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), ConfigError> {
    let prefix = format!("{prefix}__");
    for (name, value) in variables {
        let Some(name) = name.to_str() else { continue };
        let Some(tail) = name.strip_prefix(&prefix) else {
            continue;
        };
        let key = tail.to_lowercase();
        let segments: Vec<&str> = key.split("__").collect();
        let origin = Box::new(Origin::Variable(name.to_owned()));
        let Some(value) = value.to_str() else {
            return Err(ConfigError::Key {
                origin,
                key: segments.join("."),
                value: String::new(),
                problem: "its value is not UTF-8".to_owned(),
                remedy: "set it to plain text".to_owned(),
            });
        };
        if !root.lay(&segments, value, &origin) {
            return Err(ConfigError::Key {
                origin,
                key: segments.join("."),
                value: format!(" = {value:?}"),
                problem: "the name leads through a key that is not a table".to_owned(),
                remedy: "remove the variable, or name a key of a table".to_owned(),
            });
        }
    }
    Ok(())
}

impl Invalid {
    fn at(self, root: &Node) -> ConfigError {
        ConfigError::Key {
            origin: Box::new(root.origin_of(self.key.split('.'))),
            key: self.key,
            value: format!(" = {}", self.value),
            problem: self.problem,
            remedy: self.remedy,
        }
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        Self::Key {
            origin: fault.origin.unwrap_or_else(|| Box::new(Origin::Default)),
            key: fault.key.join("."),
            value: fault
                .value
                .map(|value| format!(" = {value}"))
                .unwrap_or_default(),
            problem: fault.problem,
            remedy: fault.remedy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::net::SocketAddr;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Example {
        media: Media,
        admin: Option<SocketAddr>,
        routes: Vec<Route>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(default)]
    struct Media {
        listen: SocketAddr,
        advertise: Vec<SocketAddr>,
        workers_count: u16,
        spin: bool,
        io_model: Model,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Route {
        transceiver: u16,
        address: SocketAddr,
    }

    #[derive(Debug, Deserialize, PartialEq, Clone, Copy)]
    #[serde(rename_all = "lowercase")]
    enum Model {
        Auto,
        Ring,
    }

    impl Default for Media {
        fn default() -> Self {
            Self {
                listen: "127.0.0.1:3490".parse().unwrap(),
                advertise: Vec::new(),
                workers_count: 1,
                spin: false,
                io_model: Model::Auto,
            }
        }
    }

    impl Validate for Example {
        fn validate(&self) -> Result<(), Invalid> {
            if self.media.workers_count == 0 {
                return Err(Invalid::new(
                    "media.workers_count",
                    self.media.workers_count,
                    "at least one worker is needed",
                    "set it to 1 or more",
                ));
            }
            Ok(())
        }
    }

    fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Example, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.toml");
        std::fs::write(&path, text).unwrap();
        let variables = variables
            .iter()
            .map(|(k, v)| (OsString::from(k), OsString::from(v)));
        load_with(Some(&path), "SYRINX_EDGE", variables).map_err(|error| {
            let line = error.to_string();
            assert!(!line.contains('\n'), "an error is one line: {line:?}");
            line.replace(&format!("{}/", folder.path().display()), "")
        })
    }

    #[test]
    fn no_file_and_no_variable_is_all_defaults() {
        let loaded: Example = load_with(None, "SYRINX_EDGE", []).unwrap();
        assert_eq!(loaded, Example::default());
    }

    #[test]
    fn every_kind_of_value_is_read_from_the_file() {
        let loaded = load_text(
            "admin = '127.0.0.1:9464'\n[media]\nlisten = '[::1]:1'\nadvertise = ['1.2.3.4:5']\n\
             workers_count = 2\nspin = true\nio_model = 'ring'\n\
             [[routes]]\ntransceiver = 7\naddress = '127.0.0.1:6'\n",
            &[],
        )
        .unwrap();
        assert_eq!(loaded.media.listen, "[::1]:1".parse().unwrap());
        assert_eq!(loaded.media.advertise, ["1.2.3.4:5".parse().unwrap()]);
        assert_eq!((loaded.media.workers_count, loaded.media.spin), (2, true));
        assert_eq!(loaded.media.io_model, Model::Ring);
        assert_eq!(loaded.admin, Some("127.0.0.1:9464".parse().unwrap()));
        assert_eq!(loaded.routes[0].transceiver, 7);
    }

    #[test]
    fn every_kind_of_value_has_a_twin_in_the_environment_that_wins() {
        let loaded = load_text(
            "admin = '127.0.0.1:1'\n[media]\nworkers_count = 9\n",
            &[
                ("SYRINX_EDGE__MEDIA__LISTEN", "[::1]:1"),
                ("SYRINX_EDGE__MEDIA__ADVERTISE", "1.2.3.4:5, 1.2.3.4:6"),
                ("SYRINX_EDGE__MEDIA__WORKERS_COUNT", "2"),
                ("SYRINX_EDGE__MEDIA__SPIN", "true"),
                ("SYRINX_EDGE__MEDIA__IO_MODEL", "ring"),
                ("SYRINX_EDGE__ADMIN", ""),
                (
                    "SYRINX_EDGE__ROUTES",
                    "[{transceiver = 7, address = '127.0.0.1:6'}]",
                ),
                ("SYRINX_EDGEWISE__MEDIA", "somebody else's"),
            ],
        )
        .unwrap();
        assert_eq!(loaded.media.listen, "[::1]:1".parse().unwrap());
        assert_eq!(loaded.media.advertise.len(), 2);
        assert_eq!((loaded.media.workers_count, loaded.media.spin), (2, true));
        assert_eq!(loaded.media.io_model, Model::Ring);
        assert_eq!(
            loaded.admin, None,
            "an empty variable unsets an optional key"
        );
        assert_eq!(
            loaded.routes,
            [Route {
                transceiver: 7,
                address: "127.0.0.1:6".parse().unwrap()
            }]
        );
    }

    #[test]
    fn unknown_key_in_the_file_names_line_key_value_and_the_known_ones() {
        assert_eq!(
            load_text("[media]\nspin = true\nlisten_adr = 'x'\n", &[]).unwrap_err(),
            "edge.toml:3: media.listen_adr = \"x\": unknown key; known keys of media are: \
             listen, advertise, workers_count, spin, io_model"
        );
        assert_eq!(
            load_text("[medium]\n", &[]).unwrap_err(),
            "edge.toml:1: medium: unknown key; known keys here are: media, admin, routes"
        );
    }

    #[test]
    fn unknown_key_in_the_environment_names_the_variable() {
        assert_eq!(
            load_text("", &[("SYRINX_EDGE__MEDIA__WORKER", "2")]).unwrap_err(),
            "environment variable SYRINX_EDGE__MEDIA__WORKER: media.worker = \"2\": unknown key; \
             known keys of media are: listen, advertise, workers_count, spin, io_model"
        );
        assert_eq!(
            load_text(
                "",
                &[
                    ("SYRINX_EDGE__MEDIA__SPIN__X", "2"),
                    ("SYRINX_EDGE__MEDIA__SPIN", "1")
                ]
            )
            .unwrap_err(),
            "environment variable SYRINX_EDGE__MEDIA__SPIN: media.spin = \"1\": the name leads \
             through a key that is not a table; remove the variable, or name a key of a table"
        );
    }

    #[test]
    fn wrong_type_names_what_was_expected() {
        assert_eq!(
            load_text("[media]\nworkers_count = 'two'\n", &[]).unwrap_err(),
            "edge.toml:2: media.workers_count = \"two\": expected a whole number from 0 to 65535; \
             write such a value"
        );
        assert_eq!(
            load_text("[media]\nworkers_count = 70000\n", &[]).unwrap_err(),
            "edge.toml:2: media.workers_count = 70000: expected a whole number from 0 to 65535; \
             write such a value"
        );
        assert_eq!(
            load_text("", &[("SYRINX_EDGE__MEDIA__SPIN", "maybe")]).unwrap_err(),
            "environment variable SYRINX_EDGE__MEDIA__SPIN: media.spin = \"maybe\": \
             expected true or false; write such a value"
        );
    }

    #[test]
    fn bad_address_says_how_one_is_written() {
        assert_eq!(
            load_text("[media]\nadvertise = ['127.0.0.1:1', 'localhost']\n", &[]).unwrap_err(),
            "edge.toml:2: media.advertise[1] = \"localhost\": invalid socket address syntax; \
             write ADDRESS:PORT, such as 127.0.0.1:3478 or [::1]:3478"
        );
    }

    #[test]
    fn bad_choice_lists_the_choices() {
        assert_eq!(
            load_text("", &[("SYRINX_EDGE__MEDIA__IO_MODEL", "rong")]).unwrap_err(),
            "environment variable SYRINX_EDGE__MEDIA__IO_MODEL: media.io_model = \"rong\": \
             not a known choice; use one of: auto, ring"
        );
    }

    #[test]
    fn missing_key_names_its_table() {
        assert_eq!(
            load_text("\n[[routes]]\ntransceiver = 1\n", &[]).unwrap_err(),
            "edge.toml:2: routes[0].address: missing; add it"
        );
    }

    #[test]
    fn value_out_of_range_names_its_origin() {
        assert_eq!(
            load_text("[media]\nworkers_count = 0\n", &[]).unwrap_err(),
            "edge.toml:2: media.workers_count = 0: at least one worker is needed; \
             set it to 1 or more"
        );
        assert_eq!(
            load_text("", &[("SYRINX_EDGE__MEDIA__WORKERS_COUNT", "0")]).unwrap_err(),
            "environment variable SYRINX_EDGE__MEDIA__WORKERS_COUNT: media.workers_count = 0: \
             at least one worker is needed; set it to 1 or more"
        );
    }

    #[test]
    fn broken_file_names_the_line() {
        let line = load_text("[media]\nlisten = \n", &[]).unwrap_err();
        assert!(line.starts_with("edge.toml:2: not valid TOML: "), "{line}");
        assert!(line.ends_with("; correct this line"), "{line}");
    }

    #[test]
    fn absent_file_names_the_file_and_the_remedy() {
        let error =
            load_with::<Example>(Some(Path::new("/nowhere/edge.toml")), "X", []).unwrap_err();
        let line = error.to_string();
        assert!(
            line.starts_with("/nowhere/edge.toml: cannot be read: No such file"),
            "{line}"
        );
        assert!(line.contains("--config"), "{line}");
    }
}
