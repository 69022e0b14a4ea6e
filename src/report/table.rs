//! A model of tables: rows of a struct, and columns that define how text and CSV show them.
//!
//! A row derives `Serialize` and `JsonSchema`: that is its JSON. Its columns name the same fields
//! with a heading, a kind, a width and how to cut; [`super::text`] and [`super::csv`] render any
//! table from them.

use crate::analysis::intervals::Share;
use std::borrow::Cow;

/// The kind of a column's values: their format and unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Seconds,
    Milliseconds,
    /// A share, 0 to 1; text shows it in percent.
    Percent,
    /// The same without the percent sign, which the table's title has.
    Points,
    /// A share, 0 to 1, with its 95 % interval.
    Share,
    /// An integer that counts something.
    Count,
    /// An integer that counts nothing: a pid.
    Id,
    /// A number with another unit, which its key names: `energy_j`.
    Number,
    /// A name.
    Text,
    /// A file and a line.
    Place,
}

/// How a text is cut if a line has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Others are cut first.
    Last,
    /// Its end is cut off.
    End,
    /// Its beginning is cut off.
    Front,
}

/// Which formats show a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum In {
    /// Everywhere.
    All,
    /// In text only: other columns have the same information.
    Text,
    /// Not in text, which has no room for it.
    Data,
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unknown or absent: empty.
    None,
    /// A number, in the unit of its column's kind.
    Number(f64),
    /// An integer.
    Count(i64),
    /// Yes or no.
    Flag(bool),
    /// A share with its interval.
    Share(Share),
    /// A name from the target, unchanged.
    Text(String),
    /// A file from the target, unchanged, and a line; 0 for none.
    Place(String, u32),
}

impl Value {
    /// A text; `None` if it is empty.
    pub fn text(text: &str) -> Self {
        match text {
            "" => Self::None,
            text => text.into(),
        }
    }

    /// A file and a line; `None` without a file.
    pub fn place(file: Option<&String>, line: Option<u32>) -> Self {
        match file.filter(|file| !file.is_empty()) {
            Some(file) => Self::Place(file.clone(), line.unwrap_or(0)),
            None => Self::None,
        }
    }
}

/// A column of a table whose rows are `R`.
pub struct Column<R> {
    /// The key of the same field in JSON, and the heading in CSV.
    pub key: &'static str,
    /// The heading in text.
    pub label: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Characters in text, without separators; 0 for a column that takes the remaining width.
    pub width: usize,
    /// What becomes of a text that is too long.
    pub cut: Cut,
    pub shown: In,
    /// Whether the sum of several rows has a meaning.
    pub adds_up: bool,
    /// The value of a row.
    pub value: fn(&R) -> Value,
}

impl<R> Column<R> {
    /// A column with the default width of its kind.
    pub const fn new(
        kind: Kind,
        key: &'static str,
        label: &'static str,
        value: fn(&R) -> Value,
    ) -> Self {
        let width = match kind {
            Kind::Seconds | Kind::Milliseconds | Kind::Percent | Kind::Number => 9,
            Kind::Share => 15,
            Kind::Id => 8,
            Kind::Count | Kind::Points => 6,
            Kind::Text | Kind::Place => 0,
        };
        Self {
            key,
            label,
            kind,
            width,
            cut: Cut::Last,
            shown: In::All,
            adds_up: false,
            value,
        }
    }

    /// A column that only CSV shows.
    pub const fn data(kind: Kind, key: &'static str, value: fn(&R) -> Value) -> Self {
        Self::new(kind, key, "", value).only(In::Data)
    }

    /// A text for people, built from the values of other columns.
    pub const fn words(label: &'static str, value: fn(&R) -> Value) -> Self {
        Self::new(Kind::Text, "", label, value).only(In::Text)
    }

    /// Sets the heading.
    #[must_use]
    pub const fn named(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }

    /// Sets the width.
    #[must_use]
    pub const fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets how a text is cut.
    #[must_use]
    pub const fn cut(mut self, cut: Cut) -> Self {
        self.cut = cut;
        self
    }

    /// Restricts the column to some formats.
    #[must_use]
    pub const fn only(mut self, shown: In) -> Self {
        self.shown = shown;
        self
    }

    /// The rows that are not listed are summed.
    #[must_use]
    pub const fn adds_up(mut self) -> Self {
        self.adds_up = true;
        self
    }
}

/// A table without the type of its rows, for code that renders any table.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Key and kind of each column.
    pub columns: Vec<(&'static str, Kind)>,
    /// Values, in the order of the columns.
    pub rows: Vec<Vec<Value>>,
}

impl Sheet {
    /// All columns of a table except those of text alone.
    pub fn new<R>(columns: &[Column<R>], rows: &[R]) -> Self {
        let shown = || columns.iter().filter(|column| column.shown != In::Text);
        let values = |row: &R| shown().map(|column| (column.value)(row)).collect();
        Self {
            columns: shown().map(|column| (column.key, column.kind)).collect(),
            rows: rows.iter().map(values).collect(),
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Number(number)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Value::Count(number.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Value::Count(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Count(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Value::Count(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl From<Share> for Value {
    fn from(share: Share) -> Self {
        Value::Share(share)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::Text(text.clone())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(text: Cow<'_, str>) -> Self {
        Value::Text(text.into_owned())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::None, Into::into)
    }
}
