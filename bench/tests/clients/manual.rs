//! Holds the manual's table of clients to what the tests saw.

use crate::ground::{Ending, Report};

const PAGE: &str = include_str!("../../../shared/manual/clients.md");

/// Whether the table has a row for this client, with its version and the way its call ended.
///
/// Versions that a lock file pins are compared whole. What comes from Debian moves on by itself,
/// so there the row's version is what was tried when the row was written.
pub(crate) fn confirm(report: &Report, ending: Ending) {
    let (client, version) = (&report.client, &report.version);
    println!("{client} {version}: {}", ending.label());
    let row = PAGE.lines().find_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        (cells.get(1) == Some(&client.as_str())).then_some(cells)
    });
    let row = row.unwrap_or_else(|| panic!("clients.md has no row for {client}"));
    let [_, _, told, source, ends, ..] = row.as_slice() else {
        panic!("clients.md: a row has client, version, source and end: {row:?}");
    };
    let expected = format!("`{}`", ending.label());
    assert_eq!(*ends, expected, "clients.md, {client}");
    if *source != "Debian" {
        assert_eq!(told, version, "clients.md, {client}");
    }
}
