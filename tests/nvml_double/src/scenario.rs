//! What the double replays. Everything has a default: a scenario says what is special about it.

use crate::state::{Node, node};
use gpu_node::{monotonic_ns, node::Busy};
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
    /// `None` for what the node's processes have, or 10 GiB.
    pub memory_used: Option<u64>,
    pub power_idle_mw: u32,
    pub power_busy_mw: u32,
    pub power_limit_mw: u32,
    pub activity: Activity,
    /// Shares of the time in which a kernel runs. Of a node's device, `sm` and `dram` are known,
    /// and the others are in proportion to `sm`.
    pub sm: f64,
    pub occupancy: f64,
    pub tensor: f64,
    pub dram: f64,
    pub sm_clock: u32,
    pub memory_clock: u32,
    pub throttle_busy: u64,
    pub temperature: u32,
    /// `None` where the device does not have the figure.
    pub pcie_kb: Option<u32>,
    pub nvlink_mib: f64,
    /// Length of a window of utilization; how late it is given out; how far its end is off the grid
    /// at most.
    pub window_ms: u64,
    pub delay_ms: u64,
    pub jitter_ms: u64,
    pub gpm: bool,
    /// Calls that this GPU does not support.
    pub unsupported: Vec<String>,
    /// `None` for the node's processes.
    pub processes: Option<Vec<Process>>,
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
    /// As the queues of a device of the node do.
    Node(usize),
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
            memory_used: None,
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
            pcie_kb: Some(2_000_000),
            nvlink_mib: 0.0,
            window_ms: 167,
            delay_ms: 40,
            jitter_ms: 5,
            gpm: true,
            unsupported: Vec::new(),
            processes: None,
            mig: None,
            lost_at_s: None,
        }
    }
}

impl Scenario {
    /// The devices of a node.
    pub(crate) fn of_node(node: &gpu_node::scenario::Scenario) -> Self {
        let gpus = node.gpus.iter().enumerate();
        Self {
            gpus: gpus
                .map(|(number, gpu)| Gpu::of_node(number, gpu))
                .collect(),
            ..Self::default()
        }
    }
}

impl Gpu {
    /// A device of a node, by its number.
    pub fn of_node(number: usize, gpu: &gpu_node::scenario::Gpu) -> Self {
        Self {
            name: gpu.name.clone(),
            uuid: gpu.uuid.clone(),
            compute: gpu.compute,
            memory_total: gpu.memory_total,
            activity: Activity::Node(number),
            sm: 1.0,
            dram: 1.0,
            pcie_kb: None,
            ..Self::default()
        }
    }

    /// Busy time from one moment to another, and how busy.
    pub(crate) fn busy(&self, from_ns: u64, to_ns: u64) -> Busy {
        let busy = self.of_device(|own, number| own.shared.busy(number, from_ns, to_ns));
        busy.unwrap_or_else(|| {
            let ns = self.activity.busy_ns(from_ns, to_ns);
            Busy {
                ns,
                multiprocessors_ns: ns * self.sm,
                memory_ns: ns * self.dram,
            }
        })
    }

    pub(crate) fn processes(&self) -> Vec<Process> {
        self.processes.clone().unwrap_or_else(|| {
            let processes = self.of_device(|own, number| own.shared.processes(number));
            let processes = processes.unwrap_or_default().into_iter();
            let process = |(pid, memory)| Process {
                pid,
                memory,
                instance: None,
            };
            processes.map(process).collect()
        })
    }

    pub(crate) fn memory_used(&self) -> u64 {
        let processes = || self.of_device(|own, number| own.shared.processes(number));
        let sum = |processes: Vec<(u32, u64)>| processes.iter().map(|process| process.1).sum();
        self.memory_used
            .or_else(|| processes().map(sum))
            .unwrap_or(10 << 30)
    }

    /// By what factor it is slower now.
    pub(crate) fn slowdown(&self) -> f64 {
        let slowdown = self.of_device(|own, number| {
            let throttle = own.scenario.gpus[number].throttle;
            own.shared.slowdown(number, throttle, monotonic_ns())
        });
        slowdown.unwrap_or(1.0)
    }

    fn of_device<T>(&self, read: impl Fn(&Node, usize) -> T) -> Option<T> {
        match self.activity {
            Activity::Node(number) => node().map(|own| read(own, number)),
            _ => None,
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
    /// Busy time from one moment to another, ns. The test knows the same. Of a node's device it is
    /// 0: the node has it.
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
            Self::Node(_) => 0.0,
        }
    }
}
