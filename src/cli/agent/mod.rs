//! Parts of `torchspy agent`.
//!
//! | file | content |
//! |---|---|
//! | [`metrics`] | the series, and their text |
//! | [`job_labels`] | what jobs are called in them |
//! | [`server`] | answers scrapes |
//! | [`watched`] | a trainer, or a launcher with its ranks, that is sampled |
//! | [`standstill`] | whether a session that does not move hangs |
//! | [`ring`] | recordings of the last minutes |
//! | [`push`] | sends profiles to receivers |
//! | [`pyroscope`], [`otlp`] | what these receivers take |

pub(super) mod job_labels;
pub(super) mod metrics;
pub(super) mod otlp;
pub(super) mod push;
pub(super) mod pyroscope;
pub(super) mod ring;
pub(super) mod server;
pub(super) mod standstill;
pub(super) mod watched;
