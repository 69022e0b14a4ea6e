//! Pure folds over a profile: what a report says, before it is drawn.
//!
//! | file | says |
//! |---|---|
//! | [`summary`] | per process: the training thread's wall time by row, by phase and by activity |
//! | [`intervals`] | how sure a share is |
//! | [`backward`] | which nodes of autograd's graph backward was in, and of which modules they are |
//! | [`forward`] | in which modules the operators of forward were called |
//! | [`compile`] | what torch.compile took, and what ran of it |
//! | [`functions`] | which functions and lines the time was spent in |
//! | [`modules`] | which `nn.Module`s the forward passes were in |
//! | [`operators`] | which operators it was spent in, and where they were called from |
//! | [`threads`] | what every thread was, and did |
//! | [`quality`] | how good the samples are, and what they cost |
//! | [`rounding`] | percentages that add up |

pub mod backward;
pub mod compile;
pub mod forward;
pub mod functions;
pub mod intervals;
pub mod modules;
pub mod operators;
pub mod quality;
pub mod rounding;
pub mod summary;
pub mod threads;

use crate::model::profile::Profile;
use quality::QualitySummary;
use summary::ProcessSummary;

/// Everything that reports say of a profile.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Processes: ranks by number, then other trainers, then the rest by start.
    pub processes: Vec<ProcessSummary>,
    /// The process whose summary stands for the recording: the first trainer that was sampled. An index into `processes`.
    pub primary: Option<usize>,
    /// The sampler's figures.
    pub quality: QualitySummary,
}

impl Analysis {
    /// The process whose summary stands for the recording.
    pub fn primary(&self) -> Option<&ProcessSummary> {
        self.processes.get(self.primary?)
    }
}

/// Sums a profile up.
pub fn analyze(profile: &Profile) -> Analysis {
    let processes = summary::summarize(profile);
    let primary = summary::primary(&processes);
    Analysis {
        processes,
        primary,
        quality: quality::summarize(profile),
    }
}
