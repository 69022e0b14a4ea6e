//! Formats: a profile in, bytes out.

pub mod json;
pub mod text;
