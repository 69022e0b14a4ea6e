//! Tables whose rows all have the same fields: a column for each field, declared once for both
//! directions.
//!
//! Samples, frames and stacks have columns of their own making: what a row holds there depends on
//! its kind, or on a guess that both sides make, and one declaration of that would be a language.

use super::column::{Corrupt, TextColumn};
use crate::model::code::PythonVersion;
use crate::model::ids::{CounterId, ModuleId, ProcessId, ThreadId, TrackId};

/// Most rows of a table of a segment.
pub(super) const MAX_ROWS: usize = 1 << 20;

/// The number of `rows`, where that many fit in a segment.
pub(super) fn count_of(rows: usize, most: usize) -> Result<u32, Corrupt> {
    if rows > most {
        return Err(Corrupt("a table is too large"));
    }
    u32::try_from(rows).map_err(|_| Corrupt("a table is too large"))
}

/// A value that a column holds as a number.
pub(super) trait Number: Sized {
    fn number(&self) -> u64;

    fn of(number: u64) -> Result<Self, Corrupt>;
}

macro_rules! number {
    ($($type:ty: $value:pat => $number:expr, $from:ident => $of:expr;)+) => {
        $(impl Number for $type {
            fn number(&self) -> u64 {
                let $value = *self;
                $number
            }

            fn of($from: u64) -> Result<Self, Corrupt> {
                $of
            }
        })+
    };
}

const OUT_OF_RANGE: Corrupt = Corrupt("a number is out of range");

number! {
    u64: value => value, number => Ok(number);
    u32: value => value.into(), number => u32::try_from(number).map_err(|_| OUT_OF_RANGE);
    i32: value => i64::from(value) as u64, number => i32::try_from(number as i64).map_err(|_| OUT_OF_RANGE);
    bool: value => value.into(), number => Ok(number != 0);
    PythonVersion: version => u64::from(version.major) << 8 | u64::from(version.minor), number => {
        let [major, minor] = u16::try_from(number).map_err(|_| OUT_OF_RANGE)?.to_be_bytes();
        Ok(PythonVersion::new(major, minor))
    };
    Option<bool>: value => value.map_or(0, |value| 1 + u64::from(value)), number => match number {
        0 => Ok(None),
        1 => Ok(Some(false)),
        2 => Ok(Some(true)),
        _ => Err(Corrupt("an unknown code")),
    };
    ProcessId: id => id.0.into(), number => u32::of(number).map(ProcessId);
    ThreadId: id => id.0.into(), number => u32::of(number).map(ThreadId);
    ModuleId: id => id.0.into(), number => u32::of(number).map(ModuleId);
    CounterId: id => id.0.into(), number => u32::of(number).map(CounterId);
    TrackId: id => id.0.into(), number => u32::of(number).map(TrackId);
}

/// Declares the columns of a table: `field: coding` in the order of the file, where a coding is one
/// of those of `coding!`. Its argument is an earlier field, or a value that the table is `given`.
macro_rules! columns {
    (
        $(#[$doc:meta])*
        $name:ident of $row:ident, at most $most:expr $(, given $given:ident)?;
        $($field:ident: $coding:ident $(($base:ident))?,)+
    ) => {
        $(#[$doc])*
        #[derive(Debug, Default, Serialize, Deserialize)]
        pub(super) struct $name<C> {
            count: u32,
            $($field: column_of::$coding<C>,)+
        }

        impl $name<ColumnWriter> {
            pub(super) fn encode<'t>(
                rows: impl ExactSizeIterator<Item = &'t $row>,
                $($given: u64,)?
            ) -> Result<Self, Corrupt> {
                let mut columns = Self {
                    count: count_of(rows.len(), $most)?,
                    ..Self::default()
                };
                for $row { $($field,)+ } in rows {
                    $(coding!(put $coding (columns.$field) $field $($base)?);)+
                }
                Ok(columns)
            }
        }

        impl $name<ColumnReader<'_>> {
            pub(super) fn decode(mut self, $($given: u64,)?) -> Result<Vec<$row>, Corrupt> {
                let count = self.count as usize;
                if count > $most $(|| !self.$field.has_rows(count))+ {
                    return Err(Corrupt("a table declares more rows than it has"));
                }
                let mut rows = Vec::with_capacity(count);
                for _ in 0..count {
                    $(let $field = coding!(get $coding (self.$field) $($base)?);)+
                    rows.push($row { $($field,)+ });
                }
                Ok(rows)
            }
        }
    };
}

/// The column of a field, by its coding.
#[expect(non_camel_case_types, reason = "they go by the name of the coding")]
pub(super) mod column_of {
    pub(in super::super) type text<C> = super::TextColumn<C>;
    pub(in super::super) type plain<C> = C;
    pub(in super::super) type fixed<C> = C;
    pub(in super::super) type delta<C> = C;
    pub(in super::super) type near<C> = C;
    pub(in super::super) type before<C> = C;
    pub(in super::super) type after<C> = C;
}

/// How a field is written, and read.
macro_rules! coding {
    // A string.
    (put text ($column:expr) $value:ident) => {
        $column.put($value)?
    };
    (get text ($column:expr)) => {
        $column.get()?
    };
    // As it is.
    (put plain ($column:expr) $value:ident) => {
        $column.put($value.number())
    };
    (get plain ($column:expr)) => {
        Number::of($column.get()?)?
    };
    // In eight bytes.
    (put fixed ($column:expr) $value:ident) => {
        $column.put_fixed($value.number())
    };
    (get fixed ($column:expr)) => {
        Number::of($column.get_fixed()?)?
    };
    // The difference to the row before.
    (put delta ($column:expr) $value:ident) => {
        $column.put_delta($value.number())
    };
    (get delta ($column:expr)) => {
        Number::of($column.get_delta()?)?
    };
    // The difference to another number, of either sign.
    (put near ($column:expr) $value:ident $base:ident) => {
        $column.put_difference($value.number(), $base.number())
    };
    (get near ($column:expr) $base:ident) => {
        Number::of($column.get_difference($base)?)?
    };
    // How far it is before another number.
    (put before ($column:expr) $value:ident $base:ident) => {
        $column.put($base.saturating_sub(*$value))
    };
    (get before ($column:expr) $base:ident) => {
        u64::saturating_sub($base, $column.get()?)
    };
    // How far it is after another number.
    (put after ($column:expr) $value:ident $base:ident) => {
        $column.put($value.saturating_sub(*$base))
    };
    (get after ($column:expr) $base:ident) => {
        u64::checked_add($base, $column.get()?)
            .ok_or(Corrupt("a range ends past the last number"))?
    };
}

pub(super) use {coding, columns};
