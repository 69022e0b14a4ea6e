//! Formats: a profile in, bytes out.
