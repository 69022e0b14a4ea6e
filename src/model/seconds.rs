//! Times are kept in nanoseconds, and written in seconds.

use serde::Serializer;

/// Nanoseconds in seconds.
pub fn of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// For `serde(serialize_with)`: nanoseconds as seconds.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(of(*ns))
}
