//! A session in progress: sums over its segments as they arrive, in memory that does not grow with
//! its length.
//!
//! | file | content |
//! |---|---|
//! | [`sums`] | sums over an interval that can be added and subtracted |
//! | [`follow`] | what each rank does, segment by segment, as parts that add up: for the agent |
//! | [`chunk`] | one segment with names, classes and sums |
//! | [`store`] | sums of the last seconds and of the session, and the state of the run |

pub mod chunk;
pub mod follow;
pub mod store;
pub mod sums;

pub use store::Live;
