//! What the double replays. Everything has a default: a scenario says what is special about it.

use serde::{Deserialize, Serialize};

/// A machine with its GPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Scenario {
    pub driver: String,
    /// What `nvmlInit_v2` returns.
    pub init: u32,
    pub gpus: Vec<Gpu>,
    pub faults: Vec<Fault>,
    /// How far the driver's clock is ahead of CLOCK_REALTIME.
    pub clock_ahead_us: i64,
}

/// A GPU. Figures with `busy` hold while a kernel runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub name: String,
    pub uuid: String,
    pub compute: (i32, i32),
    pub memory_total: u64,
    pub memory_used: u64,
    pub power_idle_mw: u32,
    pub power_busy_mw: u32,
    pub power_limit_mw: u32,
    pub activity: Activity,
    pub sm: f64,
    pub occupancy: f64,
    pub tensor: f64,
    pub dram: f64,
    pub sm_clock: u32,
    pub memory_clock: u32,
    pub throttle_busy: u64,
    pub temperature: u32,
    pub pcie_kb: u32,
    pub nvlink_mib: f64,
    /// Length of a window of utilization; how late it is given out; how far its end is off the grid
    /// at most.
    pub window_ms: u64,
    pub delay_ms: u64,
    pub jitter_ms: u64,
    pub gpm: bool,
    /// Calls that this GPU does not support.
    pub unsupported: Vec<String>,
    pub processes: Vec<Process>,
    /// MIG mode, and its instances.
    pub mig: Option<Vec<Instance>>,
    /// When it falls off the bus, since `nvmlInit_v2`.
    pub lost_at_s: Option<f64>,
}

/// When a kernel runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// This share of any time.
    Constant(f64),
    /// The first `busy_ms` of each `period_ms`, from CLOCK_MONOTONIC 0 on.
    Square { period_ms: u64, busy_ms: u64 },
    /// As a file says, line by line, as it grows: CLOCK_MONOTONIC in ns, and the share of time from
    /// then on.
    File(String),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub memory: u64,
    /// The GPU instance that it runs on.
    pub instance: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    pub uuid: String,
    pub instance: u32,
    pub memory_total: u64,
    pub memory_used: u64,
}

/// What goes wrong with a call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    /// The C function.
    pub call: String,
    /// On which GPU; `None` for any.
    pub gpu: Option<usize>,
    /// From when on and until when, since `nvmlInit_v2`.
    pub from_s: f64,
    pub until_s: Option<f64>,
    /// How often at most.
    pub times: Option<u64>,
    pub block_ms: u64,
    pub spin_us: u64,
    /// What it returns then; 0 for what it would.
    pub code: u32,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            driver: "550.00.double".to_owned(),
            init: 0,
            gpus: vec![Gpu::default()],
            faults: Vec::new(),
            clock_ahead_us: 0,
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            name: "Double X100".to_owned(),
            uuid: "GPU-d0000000-0000-0000-0000-000000000000".to_owned(),
            compute: (9, 0),
            memory_total: 80 << 30,
            memory_used: 10 << 30,
            power_idle_mw: 70_000,
            power_busy_mw: 500_000,
            power_limit_mw: 700_000,
            activity: Activity::Constant(0.0),
            sm: 0.8,
            occupancy: 0.4,
            tensor: 0.3,
            dram: 0.5,
            sm_clock: 1980,
            memory_clock: 2619,
            throttle_busy: 0,
            temperature: 55,
            pcie_kb: 2_000_000,
            nvlink_mib: 0.0,
            window_ms: 167,
            delay_ms: 40,
            jitter_ms: 5,
            gpm: true,
            unsupported: Vec::new(),
            processes: Vec::new(),
            mig: None,
            lost_at_s: None,
        }
    }
}

impl Default for Instance {
    fn default() -> Self {
        Self {
            uuid: "MIG-d0000000-0000-0000-0000-000000000000".to_owned(),
            instance: 1,
            memory_total: 20 << 30,
            memory_used: 1 << 30,
        }
    }
}

impl Activity {
    /// Busy time from one moment to another, ns. The test knows the same.
    pub fn busy_ns(&self, from_ns: u64, to_ns: u64) -> f64 {
        let length = to_ns.saturating_sub(from_ns) as f64;
        match self {
            Self::Constant(share) => share * length,
            Self::Square { period_ms, busy_ms } => {
                let (period, busy) = (period_ms.max(&1) * 1_000_000, busy_ms * 1_000_000);
                let until = |at: u64| (at / period * busy + (at % period).min(busy)) as f64;
                until(to_ns) - until(from_ns)
            }
            Self::File(path) => {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                let mut changes: Vec<(u64, f64)> = Vec::new();
                // The last line may be half written.
                for line in text
                    .split_inclusive('\n')
                    .filter(|line| line.ends_with('\n'))
                {
                    let mut words = line.split_whitespace();
                    let time = words.next().and_then(|word| word.parse().ok());
                    let share = words.next().and_then(|word| word.parse().ok());
                    changes.extend(time.zip(share));
                }
                let ends = changes.iter().skip(1).map(|change| change.0);
                let ends = ends.chain([u64::MAX]);
                changes
                    .iter()
                    .zip(ends)
                    .map(|(&(start, share), end)| {
                        let (start, end) = (start.max(from_ns), end.min(to_ns));
                        share * end.saturating_sub(start) as f64
                    })
                    .sum()
            }
        }
    }
}
