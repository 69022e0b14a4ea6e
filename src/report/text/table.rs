//! Any table as text, by its columns.

use super::format::{
    count, cut, cut_front, joules, milliseconds, percent, place_of, printable, share_of,
};
use super::{WIDTH, line};
use crate::report::table::{Column, Cut, In, Kind, Value};

/// Minimum number of characters of a text that is cut in favour of others of its line.
const SHORTEST: usize = 12;
/// Separator before the number of a share with an interval, and the width of the number.
const SHARE_GAP: usize = 2;
const SHARE_NUMBER: usize = 7;

/// The columns of a table that text shows.
pub(super) struct TextTable<R: 'static> {
    columns: Vec<&'static Column<R>>,
}

/// A table: its headings, the first `most` rows, and how many more there are.
pub(super) fn table<R>(out: &mut String, columns: &'static [Column<R>], rows: &[R], most: usize) {
    TextTable::new(columns, rows).head(out);
    body(out, columns, rows, most);
}

/// The same without headings, for a table whose title explains it.
pub(super) fn body<R>(out: &mut String, columns: &'static [Column<R>], rows: &[R], most: usize) {
    let table = TextTable::new(columns, rows);
    for row in rows.iter().take(most) {
        table.row(out, row);
    }
    table.rest(out, rows.get(most..).unwrap_or_default());
}

impl<R> TextTable<R> {
    /// Without the columns that are empty in all `rows`.
    pub(super) fn new(columns: &'static [Column<R>], rows: &[R]) -> Self {
        let is_empty = |column: &Column<R>| {
            let mut values = rows.iter().map(column.value);
            values.all(|value| value == Value::None)
        };
        let columns = columns
            .iter()
            .filter(|column| column.shown != In::Data && !is_empty(column))
            .collect();
        Self { columns }
    }

    /// The headings.
    pub(super) fn head(&self, out: &mut String) {
        let mut text = String::new();
        for column in &self.columns {
            let label = match column.kind {
                Kind::Share => {
                    format!("{:>width$}", column.label, width = SHARE_GAP + SHARE_NUMBER)
                }
                _ => column.label.to_owned(),
            };
            push(&mut text, column, &label);
        }
        line(out, &text);
    }

    pub(super) fn row(&self, out: &mut String, row: &R) {
        let mut cells: Vec<String> = self
            .columns
            .iter()
            .map(|column| cell(column.kind, &(column.value)(row)))
            .collect();
        self.shorten(&mut cells);
        line(out, &cut(&self.joined(&cells), WIDTH));
    }

    fn joined(&self, cells: &[String]) -> String {
        let mut text = String::new();
        for (column, cell) in self.columns.iter().zip(cells) {
            push(&mut text, column, cell);
        }
        text
    }

    /// The number of further rows, and their sums; nothing without any.
    pub(super) fn rest(&self, out: &mut String, rest: &[R]) {
        let sums = self.columns.iter().map(|column| {
            let sum = rest.iter().map(|row| number(&(column.value)(row))).sum();
            let sum = column.adds_up.then_some(Value::Number(sum));
            sum.map_or(String::new(), |sum| cell(column.kind, &sum))
        });
        self.more_with(out, rest.len(), sums.collect());
    }

    /// The number of further rows that have no sums; nothing without any.
    pub(super) fn more(&self, out: &mut String, left: usize) {
        self.more_with(out, left, vec![String::new(); self.columns.len()]);
    }

    fn more_with(&self, out: &mut String, left: usize, mut cells: Vec<String>) {
        let is_text = |column: &&'static Column<R>| matches!(column.kind, Kind::Text | Kind::Place);
        let first = self.columns.iter().position(is_text);
        if let Some(cell) = first.and_then(|at| cells.get_mut(at)) {
            *cell = format!("… {} more", count(left as u64));
        }
        if left > 0 {
            line(out, &self.joined(&cells));
        }
    }

    /// Cuts texts of a line that is too long, the last first.
    fn shorten(&self, cells: &mut [String]) {
        let length = self.joined(cells).chars().count();
        let mut over = length.saturating_sub(WIDTH);
        for (column, cell) in self.columns.iter().zip(cells).rev() {
            let length = cell.chars().count();
            let kept = length.saturating_sub(over).max(SHORTEST).min(length);
            *cell = match column.cut {
                Cut::End if column.width == 0 => cut(cell, kept),
                Cut::Front if column.width == 0 => cut_front(cell, kept),
                _ => continue,
            };
            over = over.saturating_sub(length - kept);
        }
    }
}

/// Appends a cell with its separator.
fn push<R>(text: &mut String, column: &Column<R>, cell: &str) {
    let width = column.width;
    text.push_str(&match (column.kind, width) {
        (Kind::Text | Kind::Place, 0) => format!(" {cell}"),
        (Kind::Text | Kind::Place, _) => format!("  {:<width$}", cut(cell, width)),
        // Numbers are right-aligned; text after the number is not.
        (Kind::Share, _) => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Number(number) => *number,
        Value::Count(count) => *count as f64,
        Value::Share(share) => share.value,
        _ => 0.0,
    }
}

/// A value as text, without separators.
pub(crate) fn cell(kind: Kind, value: &Value) -> String {
    match (kind, value) {
        (_, Value::None) => String::new(),
        (_, Value::Text(text)) => printable(text).into_owned(),
        (_, Value::Place(file, line)) => place_of(file, *line),
        (_, Value::Flag(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
        (Kind::Id, Value::Count(number)) => number.to_string(),
        (_, Value::Count(number)) => match u64::try_from(*number) {
            Ok(number) => count(number),
            Err(_) => number.to_string(),
        },
        (_, Value::Share(known)) => {
            format!("{:SHARE_GAP$}{}", "", share_of(known))
        }
        (Kind::Seconds, Value::Number(number)) => format!("{number:.2}"),
        (Kind::Milliseconds, Value::Number(number)) => milliseconds(*number),
        (Kind::Share, Value::Number(number)) => {
            format!("{:SHARE_GAP$}{:>SHARE_NUMBER$}", "", percent(*number))
        }
        (Kind::Percent, Value::Number(number)) => percent(*number),
        (Kind::Points, Value::Number(number)) => format!("{:.1}", number * 100.0),
        // A sum.
        (Kind::Count, Value::Number(number)) => count(number.round() as u64),
        (_, Value::Number(number)) => joules(*number),
    }
}
