//! The header of a recording, clocks and losses.

use super::region::Region;
use serde::{Deserialize, Deserializer, Serialize};

/// The head of a recording, written once, before the first sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    pub torchspy: String,
    pub host: String,
    pub kernel: String,
    /// The processor architecture, as `uname -m` writes it.
    pub architecture: String,
    pub cpus: u32,
    /// The root process's command line, without secrets.
    pub command: Vec<String>,
    pub pid: i32,
    /// Whether torchspy started the target (`--`), or attached to it (`--pid`).
    pub launched: bool,
    #[serde(deserialize_with = "finite")]
    pub rate_hz: f64,
    pub native: bool,
    pub nonblocking: bool,
    /// Whether only holders of the GIL were sampled.
    pub gil_only: bool,
    /// Thread filter, where one was given.
    pub threads: Option<String>,
    /// Share of a running thread's time that stops may take, 0 to 1.
    #[serde(deserialize_with = "finite")]
    pub max_stopped: f64,
    /// CLOCK_MONOTONIC at the start.
    pub started_ns: u64,
    /// Wall clock at the start, ns since 1970.
    pub started_wall_ns: u64,
    /// Free-text facts that reports print: `cgroup quota 4.0 CPUs`.
    pub notes: Vec<String>,
    /// Regions that the user named, in the order in which they were given.
    #[serde(skip)]
    pub regions: Vec<Region>,
    /// When its session began, where the session writes one recording after another: with host and
    /// pid it names the session.
    #[serde(skip)]
    pub session: Option<ClockPair>,
}

/// NaN and infinity become 0.
fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    Ok(if value.is_finite() { value } else { 0.0 })
}

impl RunInfo {
    /// Whether native frames of running threads were read. If not, code that Python calls looks
    /// like Python.
    pub fn reads_running_native(&self) -> bool {
        self.native && !self.nonblocking
    }
}

/// The same time on both clocks. Ranks on several hosts are aligned by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPair {
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME, since 1970.
    pub wall_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// When, CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Samples whose stack was lost (their time is kept under `Truncated(Overflow)`).
    pub samples: u64,
    pub reason: String,
}
