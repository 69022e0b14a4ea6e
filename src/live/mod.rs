//! A session as it goes on: what its segments say, summed up as they come, in memory that does not
//! grow with its length.
//!
//! | file | says |
//! |---|---|
//! | [`tables`] | sums over a stretch of time that can be added and taken away again |
//! | [`chunk`] | one segment, named, classified and summed up |
//! | [`store`] | what the last seconds held, what all of it did, and how the run stands |

pub mod chunk;
pub mod store;
pub mod tables;

pub use store::Live;
