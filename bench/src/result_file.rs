//! Result files: written whole or not at all, read back by `compare`.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `text` to `path` by way of a file beside it, so that a reader never meets half of it and
/// an earlier result is replaced only by a whole one.
///
/// # Errors
/// When the folder cannot be written to.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = || format!("cannot write {}", path.display());
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(name)?;
    // A result is for others to read, as far as the user's umask allows.
    let readable = std::fs::Permissions::from_mode(0o666);
    let file = tempfile::Builder::new()
        .permissions(readable)
        .tempfile_in(folder);
    let mut file = file.with_context(name)?;
    file.write_all(text.as_bytes()).with_context(name)?;
    file.persist(path).with_context(name)?;
    Ok(())
}

/// Writes `value` as JSON.
///
/// # Errors
/// When the folder cannot be written to.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    write(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

/// Reads JSON.
///
/// # Errors
/// When the file is not there or is not a result of this kind; the error names it.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not a result of this program", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_wrote_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("deeper/result.json");
        write_json(&path, &vec![1, 2]).expect("written");
        write_json(&path, &vec![3]).expect("replaced");
        assert_eq!(read_json::<Vec<u32>>(&path).expect("read"), [3]);
        let files = std::fs::read_dir(path.parent().expect("folder"))
            .expect("listed")
            .count();
        assert_eq!(files, 1);
    }

    #[test]
    fn names_the_file_that_is_no_result() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("other.json");
        std::fs::write(&path, "{").expect("written");
        let error = read_json::<Vec<u32>>(&path)
            .expect_err("half a file")
            .to_string();
        assert!(error.contains("other.json"), "{error}");
    }
}
