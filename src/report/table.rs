//! One model of a table: rows of a struct, and the columns that say how text and CSV show them.
//!
//! A row derives `Serialize` and `JsonSchema`: that is its JSON. Its columns name the same fields
//! with a heading, a kind, a width and what may be cut; [`super::text`] and [`super::csv`] render
//! any table by them, and know of no table what it is about.

use crate::analysis::intervals::Share;
use std::borrow::Cow;

/// What the values of a column are: how they are written, and what unit they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// A share of 0 to 1; text shows it in percent.
    Percent,
    /// A share of 0 to 1 with its 95 % interval.
    Share,
    /// A whole number.
    Count,
    /// A number of any other unit, which its key names: `energy_j`.
    Number,
    /// A name.
    Text,
    /// A file and a line of it.
    Place,
}

/// What becomes of a text that a line has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Others are cut first.
    Last,
    /// Its end is cut off.
    End,
    /// Its beginning is cut off.
    Front,
}

/// Where a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum In {
    /// Everywhere.
    All,
    /// In text only: what it says is in other columns, too.
    Text,
    /// Not in text: it has no room.
    Data,
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Not known, or none: empty.
    None,
    /// A number, in the unit of its column's kind.
    Number(f64),
    /// A whole number.
    Count(i64),
    /// Yes or no.
    Flag(bool),
    /// A share with its interval.
    Share(Share),
    /// A name, as it came from the target.
    Text(String),
    /// A file, as it came from the target, and a line; 0 for none.
    Place(String, u32),
}

/// A column of a table whose rows are `R`.
pub struct Column<R> {
    /// The key of the same field in JSON, and the heading in CSV.
    pub key: &'static str,
    /// The heading in text.
    pub label: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Characters in text, without what separates columns; 0 for a text that takes what is left.
    pub width: usize,
    /// What becomes of a text that is too long.
    pub cut: Cut,
    /// Where it is shown.
    pub shown: In,
    /// Whether values of several rows add up to something that means anything.
    pub adds_up: bool,
    /// The value of a row.
    pub value: fn(&R) -> Value,
}

impl<R> Column<R> {
    /// A column of a kind, as wide as values of that kind mostly are.
    pub const fn new(
        kind: Kind,
        key: &'static str,
        label: &'static str,
        value: fn(&R) -> Value,
    ) -> Self {
        let width = match kind {
            Kind::Seconds | Kind::Milliseconds | Kind::Percent | Kind::Number => 9,
            Kind::Share => 15,
            Kind::Count => 6,
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

    /// A text that is put together for people, of what other columns say.
    pub const fn words(label: &'static str, value: fn(&R) -> Value) -> Self {
        Self::new(Kind::Text, "", label, value).only(In::Text)
    }

    /// As wide as this.
    #[must_use]
    pub const fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Cut as this says.
    #[must_use]
    pub const fn cut(mut self, cut: Cut) -> Self {
        self.cut = cut;
        self
    }

    /// Shown there only.
    #[must_use]
    pub const fn only(mut self, shown: In) -> Self {
        self.shown = shown;
        self
    }

    /// Its values add up: what is not listed is summed up.
    #[must_use]
    pub const fn adds_up(mut self) -> Self {
        self.adds_up = true;
        self
    }
}

/// A table with the type of its rows left behind: what renders whole tables takes this.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Key and kind of each column.
    pub columns: Vec<(&'static str, Kind)>,
    /// Values, in the order of the columns.
    pub rows: Vec<Vec<Value>>,
}

impl Sheet {
    /// All of a table but what is made for text alone.
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
