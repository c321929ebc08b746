//! Tables as text: columns as wide as what is in them.

use serde_json::Value;

/// Between columns.
const GAP: usize = 3;

/// Rows of one kind, aligned with what was printed before.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<Column>,
    /// The widths so far; they only grow, so that what a watch adds stands below what is there.
    widths: Vec<usize>,
    titled: bool,
}

#[derive(Debug)]
struct Column {
    title: String,
    /// Where its text is in a row's cells; `None` for the namespace, which is in the row's object.
    cell: Option<usize>,
}

impl Table {
    /// The text of a server's table; its title only the first time. Wide tables show the columns of lesser priority.
    pub(crate) fn render(
        &mut self,
        table: &Value,
        wide: bool,
        namespaces: bool,
        name: impl Fn(&str) -> String,
    ) -> String {
        if self.columns.is_empty() {
            self.columns = columns(table, wide, namespaces);
        }
        let name_column = self.columns.iter().position(|column| column.cell.is_some());
        let rows = table["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let mut lines: Vec<Vec<String>> = Vec::new();
        if !self.titled && !rows.is_empty() {
            lines.push(self.columns.iter().map(|column| column.title.clone()).collect());
            self.titled = true;
        }
        for row in rows {
            let cells = self.columns.iter().enumerate().map(|(at, column)| {
                let text = match column.cell {
                    Some(cell) => text(&row["cells"][cell]),
                    None => text(&row["object"]["metadata"]["namespace"]),
                };
                if Some(at) == name_column { name(&text) } else { text }
            });
            lines.push(cells.collect());
        }
        self.align(&lines)
    }

    fn align(&mut self, lines: &[Vec<String>]) -> String {
        align(lines, &mut self.widths)
    }
}

/// Lines of cells as text.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    align(lines, &mut Vec::new())
}

fn align(lines: &[Vec<String>], widths: &mut Vec<usize>) -> String {
    for line in lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines {
        for (at, (width, cell)) in widths.iter().zip(line).enumerate() {
            text.push_str(cell);
            if at + 1 < line.len() {
                text.extend(std::iter::repeat_n(' ', width + GAP - cell.chars().count()));
            }
        }
        text.push('\n');
    }
    text
}

fn columns(table: &Value, wide: bool, namespaces: bool) -> Vec<Column> {
    let definitions = table["columnDefinitions"].as_array().map_or(&[][..], Vec::as_slice);
    let shown = definitions
        .iter()
        .enumerate()
        .filter(|(_, column)| wide || column["priority"].as_i64().unwrap_or(0) == 0);
    let namespace = namespaces.then(|| Column { title: "NAMESPACE".to_owned(), cell: None });
    namespace
        .into_iter()
        .chain(shown.map(|(at, column)| Column {
            title: column["name"].as_str().unwrap_or_default().to_uppercase(),
            cell: Some(at),
        }))
        .collect()
}

/// A cell as one line without control characters: it may hold what a container wrote.
fn text(cell: &Value) -> String {
    let text = match cell {
        Value::Null => return "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let first = text.lines().next().unwrap_or_default();
    let shortened = if first.len() < text.trim_end().len() { "..." } else { "" };
    let clean = first.chars().map(|char| if char.is_control() { ' ' } else { char });
    clean.collect::<String>() + shortened
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods(rows: &[(&str, i64)]) -> Value {
        let rows = rows.iter().map(
            |(name, restarts)| json!({"cells": [name, restarts, null], "object": {"metadata": {"namespace": "demo"}}}),
        );
        json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Restarts", "priority": 0}, {"name": "Node", "priority": 1},
            ],
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn same(name: &str) -> String {
        name.to_owned()
    }

    #[test]
    fn columns_are_aligned() {
        let table = pods(&[("a", 0), ("longer-name", 12)]);
        assert_eq!(
            Table::default().render(&table, false, false, same),
            "NAME          RESTARTS\na             0\nlonger-name   12\n"
        );
        assert_eq!(
            Table::default().render(&pods(&[("a", 0)]), true, true, |name| format!("pod/{name}")),
            "NAMESPACE   NAME    RESTARTS   NODE\ndemo        pod/a   0          <none>\n"
        );
        assert_eq!(Table::default().render(&pods(&[]), false, false, same), "");
    }

    #[test]
    fn what_comes_later_has_no_title() {
        let mut table = Table::default();
        table.render(&pods(&[("longer-name", 0)]), false, false, same);
        let mut later = pods(&[("b", 1)]);
        later["columnDefinitions"] = Value::Null;
        assert_eq!(table.render(&later, false, false, same), "b             1\n");
    }

    #[test]
    fn a_cell_is_one_line() {
        assert_eq!(text(&json!("one\ntwo")), "one...");
        assert_eq!(text(&json!("one\n")), "one");
        assert_eq!(text(&json!("\u{1b}[31mred")), " [31mred");
        assert_eq!(text(&json!(true)), "true");
    }
}
