//! The scenario at work: what each figure is now, and which calls go wrong.

use crate::SCENARIO;
use crate::scenario::{Activity, Fault, Gpu, Instance, Scenario};
use gpu_node::{monotonic_ns, node::Busy};
use nix::time::{ClockId, clock_gettime};
use nvml_wrapper_sys::bindings::*;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Stamps that the driver keeps.
const KEPT: u64 = 120;
/// The energy counter moves at such steps.
const ENERGY_STEP_NS: u64 = 100_000_000;

pub(crate) struct State {
    pub(crate) scenario: Scenario,
    begun: Instant,
    begun_ns: u64,
    hits: Vec<AtomicU64>,
    energy: Vec<Mutex<Energy>>,
}

/// What has been counted of a GPU's busy time: a node's device knows the recent past alone.
struct Energy {
    until_ns: u64,
    busy_ns: f64,
}

/// The simulated node.
pub(crate) struct Node {
    pub(crate) scenario: gpu_node::scenario::Scenario,
    pub(crate) shared: gpu_node::node::Node,
}

/// `None` where there is none, or one that cannot be read.
pub(crate) fn node() -> Option<&'static Node> {
    static NODE: OnceLock<Option<Node>> = OnceLock::new();
    let open = || {
        let folder = std::env::var_os(gpu_node::FOLDER)?;
        Some(Node {
            scenario: gpu_node::scenario::Scenario::read(Path::new(&folder)).ok()?,
            shared: gpu_node::node::Node::open(Path::new(&folder)).ok()?,
        })
    };
    NODE.get_or_init(open).as_ref()
}

/// `None` for a scenario or node that cannot be read.
fn read_scenario() -> Option<Scenario> {
    let scenario = if let Some(path) = std::env::var_os(SCENARIO) {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()?
    } else if std::env::var_os(gpu_node::FOLDER).is_some() {
        Scenario::of_node(&node()?.scenario)
    } else {
        Scenario::default()
    };
    let exists = |gpu: &Gpu| match gpu.activity {
        Activity::Node(number) => node().is_some_and(|node| number < node.scenario.gpus.len()),
        _ => true,
    };
    scenario.gpus.iter().all(exists).then_some(scenario)
}

fn realtime_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from);
    time.map_or(0, |time| time.as_nanos() as u64)
}

/// The state; made by the first call.
pub(crate) fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(|| {
        // A scenario that cannot be read is a machine whose driver does not work: no test takes it
        // for another.
        let scenario = read_scenario().unwrap_or_else(|| Scenario {
            init: nvmlReturn_enum_NVML_ERROR_UNKNOWN,
            ..Scenario::default()
        });
        let begun_ns = monotonic_ns();
        let energy = |_| {
            Mutex::new(Energy {
                until_ns: begun_ns,
                busy_ns: 0.0,
            })
        };
        State {
            hits: scenario.faults.iter().map(|_| AtomicU64::new(0)).collect(),
            energy: scenario.gpus.iter().map(energy).collect(),
            scenario,
            begun: Instant::now(),
            begun_ns,
        }
    })
}

/// A device by its handle: the number of the GPU, and of the instance.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    pub(crate) gpu: usize,
    pub(crate) instance: Option<usize>,
}

impl Handle {
    pub(crate) fn raw(self) -> nvmlDevice_t {
        let instance = self.instance.map_or(0, |number| number + 1);
        (((instance << 16) | (self.gpu + 1)) << 4) as nvmlDevice_t
    }

    pub(crate) fn of(raw: nvmlDevice_t) -> Option<Self> {
        let bits = raw as usize >> 4;
        Some(Self {
            gpu: (bits & 0xffff).checked_sub(1)?,
            instance: (bits >> 16).checked_sub(1),
        })
    }
}

impl State {
    /// What goes wrong with a call; `None` if nothing.
    pub(crate) fn fault(&self, call: &str, gpu: Option<usize>) -> Option<nvmlReturn_t> {
        let now_s = self.begun.elapsed().as_secs_f64();
        for (fault, hits) in self.scenario.faults.iter().zip(&self.hits) {
            let concerned = fault.call == call
                && (fault.gpu.is_none() || fault.gpu == gpu)
                && now_s >= fault.from_s
                && fault.until_s.is_none_or(|until| now_s < until);
            if !concerned {
                continue;
            }
            let hit = hits.fetch_add(1, Ordering::Relaxed);
            if fault.times.is_some_and(|times| hit >= times) {
                continue;
            }
            happen(fault);
            if fault.code != 0 {
                return Some(fault.code);
            }
        }
        None
    }

    /// A GPU for a call, unless the call goes wrong.
    pub(crate) fn gpu(
        &'static self,
        call: &str,
        device: nvmlDevice_t,
    ) -> Result<(&'static Gpu, Option<&'static Instance>), nvmlReturn_t> {
        let handle = Handle::of(device).ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        if let Some(code) = self.fault(call, Some(handle.gpu)) {
            return Err(code);
        }
        let gpu = self.scenario.gpus.get(handle.gpu);
        let gpu = gpu.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        let lost = gpu
            .lost_at_s
            .is_some_and(|at| self.begun.elapsed().as_secs_f64() >= at);
        if lost {
            return Err(nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
        }
        if gpu.unsupported.iter().any(|name| name == call) {
            return Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        let instance = match handle.instance {
            Some(number) => {
                let instance = gpu.mig.as_ref().and_then(|mig| mig.get(number));
                Some(instance.ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?)
            }
            None => None,
        };
        Ok((gpu, instance))
    }

    /// Energy of a GPU since the driver was loaded, mJ: a while before the double was.
    pub(crate) fn energy_mj(&self, device: nvmlDevice_t, gpu: &Gpu) -> u64 {
        let energy = Handle::of(device).and_then(|handle| self.energy.get(handle.gpu));
        let Some(energy) = energy else { return 0 };
        let mut energy = energy.lock().unwrap_or_else(|error| error.into_inner());
        let now_ns = monotonic_ns() / ENERGY_STEP_NS * ENERGY_STEP_NS;
        if now_ns > energy.until_ns {
            energy.busy_ns += gpu.busy(energy.until_ns, now_ns).ns;
            energy.until_ns = now_ns;
        }
        let length_s = (energy.until_ns - self.begun_ns) as f64 / 1e9;
        let above = f64::from(gpu.power_busy_mw) - f64::from(gpu.power_idle_mw);
        let above_mj = energy.busy_ns / 1e9 * above;
        1_000_000 + (length_s * f64::from(gpu.power_idle_mw) + above_mj) as u64
    }

    /// Mean power over the second before.
    pub(crate) fn power_mw(&self, gpu: &Gpu) -> u32 {
        let now_ns = monotonic_ns();
        let busy = gpu.busy(now_ns.saturating_sub(1_000_000_000), now_ns).ns / 1e9;
        let above = f64::from(gpu.power_busy_mw) - f64::from(gpu.power_idle_mw);
        (f64::from(gpu.power_idle_mw) + busy * above) as u32
    }

    /// Buffered samples with stamps after `since_us`: percent over the window that ends at the
    /// stamp.
    pub(crate) fn samples(
        &self,
        gpu: &Gpu,
        since_us: u64,
        of: fn(Busy) -> f64,
    ) -> Vec<nvmlSample_t> {
        let now_ns = monotonic_ns();
        let window_ns = gpu.window_ms.max(1) * 1_000_000;
        let ahead_ns = realtime_ns() as i128 - now_ns as i128
            + i128::from(self.scenario.clock_ahead_us) * 1000;
        let end_of = |number: u64| number * window_ns + jitter(number, gpu.jitter_ms * 1_000_000);
        let newest = now_ns / window_ns;
        let numbers = newest.saturating_sub(KEPT)..=newest;
        numbers
            .filter(|&number| number > 0 && end_of(number) + gpu.delay_ms * 1_000_000 <= now_ns)
            .filter_map(|number| {
                let (start, end) = (end_of(number - 1), end_of(number));
                // As the driver has it, once and for all: the two clocks drift by less than a
                // microsecond meanwhile.
                let stamp = u64::try_from((i128::from(end) + ahead_ns) / 1000).ok()?;
                // A driver has them ready: what is not asked for costs nothing.
                (stamp > since_us + 500).then(|| {
                    let share = of(gpu.busy(start, end)) / (end - start) as f64;
                    nvmlSample_t {
                        timeStamp: stamp,
                        sampleValue: nvmlValue_t {
                            ullVal: (share * 100.0).round() as u64,
                        },
                    }
                })
            })
            .collect()
    }
}

fn happen(fault: &Fault) {
    if fault.block_ms > 0 {
        std::thread::sleep(Duration::from_millis(fault.block_ms));
    }
    let spun = Instant::now();
    while spun.elapsed() < Duration::from_micros(fault.spin_us) {
        std::hint::spin_loop();
    }
}

/// The same for the same number, between 0 and `most`.
fn jitter(number: u64, most: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 33) % (most + 1)
}
