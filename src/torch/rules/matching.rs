//! The rows for one function, and what each of them decided.

use super::FunctionRules;
use std::cell::RefCell;

/// A row: its table, and its index among the rows of that table, in the order of
/// [`listed`](super::listed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowId {
    /// One of [`SUBJECTS`](super::SUBJECTS).
    pub subject: &'static str,
    /// From 0; rows that the user added come first.
    pub at: usize,
}

/// A key of a row that took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The key.
    pub meaning: &'static str,
    /// The row.
    pub row: RowId,
}

/// The rules for a function, and the rows that they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The combined rules.
    pub rules: FunctionRules,
    /// The rows that match the function, whether they decide anything or not.
    pub matching: Vec<RowId>,
    /// All decisions, each meaning once.
    pub decisions: Vec<Decision>,
}

/// The rows of one table that match a function, in order.
pub(super) struct Matching<'s, R> {
    subject: &'static str,
    rows: Vec<(usize, &'s R)>,
    /// Number of first rows of the table that are the user's.
    added: usize,
    decisions: RefCell<Vec<Decision>>,
}

impl<'s, R> Matching<'s, R> {
    /// The rows at `found`, which is sorted, of a table.
    pub(super) fn new(
        subject: &'static str,
        table: &'s [R],
        found: &[usize],
        added: usize,
    ) -> Self {
        let rows = found.iter().filter_map(|&at| Some((at, table.get(at)?)));
        Self {
            subject,
            rows: rows.collect(),
            added,
            decisions: RefCell::default(),
        }
    }

    /// The value of the first row that has one.
    pub(super) fn first<T>(
        &self,
        meaning: &'static str,
        of: impl Fn(&'s R) -> Option<T>,
    ) -> Option<T> {
        self.first_where(meaning, true, |_, row| of(row))
    }

    /// The same, restricted to rows that the user added unless `holds`. Rows come with their
    /// indices.
    pub(super) fn first_where<T>(
        &self,
        meaning: &'static str,
        holds: bool,
        of: impl Fn(usize, &'s R) -> Option<T>,
    ) -> Option<T> {
        let mut rows = self
            .rows
            .iter()
            .filter(|&&(at, _)| holds || at < self.added);
        let (at, value) = rows.find_map(|&(at, row)| Some((at, of(at, row)?)))?;
        self.decided(meaning, self.subject, at);
        Some(value)
    }

    /// Records that a row, of this table or of another, decided something.
    pub(super) fn decided(&self, meaning: &'static str, subject: &'static str, at: usize) {
        let row = RowId { subject, at };
        self.decisions.borrow_mut().push(Decision { meaning, row });
    }

    /// Whether a row that the user added is among them.
    pub(super) fn has_added(&self) -> bool {
        self.rows.iter().any(|&(at, _)| at < self.added)
    }

    /// The combined rules; `others` are rows of other tables that match the function.
    pub(super) fn explain(
        self,
        rules: FunctionRules,
        others: impl IntoIterator<Item = (&'static str, usize)>,
    ) -> Explanation {
        let own = self.rows.iter().map(|&(at, _)| (self.subject, at));
        let all = own.chain(others);
        Explanation {
            rules,
            matching: all.map(|(subject, at)| RowId { subject, at }).collect(),
            decisions: self.decisions.into_inner(),
        }
    }
}
