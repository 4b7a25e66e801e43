//! Plain tables: what a terminal, a log and a commit message can all show.

/// Rows of text under a heading; every column is as wide as its widest cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a heading.
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self {
            rows: vec![heading.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a row; cells that are missing stay empty.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The first column is flush left, the others right: names, then numbers.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 {
                    line.push_str(&format!("{cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_names_left_and_numbers_right() {
        let mut table = Table::new(["target", "ns", ""]);
        table.row(["go".into(), "3400".into(), String::new()]);
        table.row(["a longer name".into(), "85".into(), "lost 3".into()]);
        let expected = "target           ns\ngo             3400\na longer name    85  lost 3\n";
        assert_eq!(table.render(), expected);
    }
}
