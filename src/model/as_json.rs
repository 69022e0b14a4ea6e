//! How fields are written in JSON: functions for `serde(serialize_with)`, for rows that are kept in
//! other units and types.

#![allow(
    clippy::trivially_copy_pass_by_ref,
    clippy::ref_option,
    reason = "serde hands fields over so"
)]

use super::named::Named;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// A name.
///
/// # Errors
/// Those of the serializer, as of all functions here.
pub fn name<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.stable_name())
}

/// A name, or null.
pub fn name_or_null<T: Named, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.map(T::stable_name).serialize(serializer)
}

/// Counts by name.
pub fn counts<T: Named, S: Serializer>(
    counts: &[(T, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let by_name = counts.iter().map(|&(of, count)| (of.stable_name(), count));
    by_name.collect::<BTreeMap<_, _>>().serialize(serializer)
}

/// Times by name, in seconds.
pub fn seconds_by_name<T: Named, S: Serializer>(
    times: &[(T, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let by_name = times
        .iter()
        .map(|&(of, ns)| (of.stable_name(), super::seconds::of(ns)));
    by_name.collect::<BTreeMap<_, _>>().serialize(serializer)
}

/// Nanoseconds as microseconds.
pub fn microseconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e3)
}

/// A fraction of nanoseconds as seconds.
pub fn seconds<S: Serializer>(ns: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(ns / 1e9)
}

/// Null where a text is empty.
pub fn null_if_empty<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    (!text.is_empty()).then_some(text).serialize(serializer)
}

/// Null where a number is zero.
pub fn null_if_zero<S: Serializer>(number: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    (*number > 0).then_some(number).serialize(serializer)
}
