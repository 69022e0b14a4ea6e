//! The terminal view of a session that goes on.
//!
//! | file | about |
//! |---|---|
//! | [`state`] | what the user chose, and what keys do to it |
//! | [`rows`] | the table of each view, from what is known |
//! | [`head`] | the lines above it |
//! | [`draw`] | how that is laid out on a screen of any size |

pub mod draw;
pub mod head;
pub mod rows;
pub mod state;

use crate::sampling::session::ProgressSnapshot;

/// The state of the session outside of its segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub sampler: ProgressSnapshot,
    /// The target has ended: its exit, for people.
    pub ended: Option<String>,
    /// What NCCL reports while nothing moves.
    pub nccl_ras: Option<String>,
    /// A recording is under way into this file.
    pub recording: Option<String>,
}
