//! The rules: which figures imply which cause, and the thresholds.
//!
//! Guard rails are part of the rules. Work is dispatched to the GPU without waiting for it: while
//! the device is busy, time in launches is back-pressure, and a wait for the device is a wait for
//! necessary work. Both indicate the host as the cause only if the device has spare time. A running
//! kernel does not mean that the device computes: NCCL's kernels spin. So a busy device is the
//! bound only if its multiprocessors or its power confirm it.

use super::figures::{Figures, Part};
use super::{Cause, Evidence};
use crate::model::named::named;

/// Minimum share of the training thread's time for a finding.
pub const WORTH: f64 = 0.15;
/// Minimum weight for the only cause.
pub const ENOUGH: f64 = 0.2;
/// Host work for a device with spare time can be removed only in part, a wait completely: such a
/// share counts for half.
pub const HOSTS_PART: f64 = 0.5;
/// Multiprocessors that are active for this share are the bound where utilization is not measured
/// (MIG).
pub const COMPUTES_ALONE: f64 = 0.7;
/// A device that is busy for no more than this share is not used.
pub const UNUSED: f64 = 0.1;
/// From this share of time with reduced clocks on they are the reason why a device is busy.
pub const HELD: f64 = 0.5;
/// From this share of time on the device is busy, and the host waits for it.
pub const BUSY: f64 = 0.85;
/// Up to this share the device has spare time.
pub const SPARE: f64 = 0.70;
/// From this share of active multiprocessors, or of the power limit, on the device computes.
pub const COMPUTES_SM: f64 = 0.5;
/// See [`COMPUTES_SM`].
pub const COMPUTES_POWER: f64 = 0.6;
/// Below this share of multiprocessors a busy device runs kernels that spin or wait.
pub const SPINS_SM: f64 = 0.3;
/// Windows with less than this part of the mean are of another kind of work.
const TOLD_APART: f64 = 0.6;
/// Share of multiprocessors that kernels of a training use, without the gaps between them.
const COMPUTING_SM: f64 = 0.9;
/// Share of its time in which a host that launches small kernels does not wait for the device.
const WAITS_MOSTLY: f64 = 0.5;
/// Memory bandwidth is the bound from this share on, if it is also the larger of the two.
pub const DRAM: f64 = 0.6;
/// Minimum share of time without a CPU.
pub const NO_CPU: f64 = 0.10;
/// From this share of throttled time on a cgroup's quota is the reason for missing CPUs.
pub const THROTTLED_CGROUP: f64 = 0.05;
/// If at least this many OpenMP threads compute, on average, while the training thread waits for
/// them, the work is unevenly distributed.
pub const UNEVEN: f64 = 0.5;
/// From this share of the allowed CPUs on none is left.
pub const CPUS_FULL: f64 = 0.95;
/// Share of workers' time without a CPU.
pub const WORKERS_STARVED: f64 = 0.2;
/// From this share of the workers' time in reads on storage is what they wait for.
pub const STORAGE: f64 = 0.4;
/// Minimum share of time with clocks held down by heat or the power supply.
pub const THROTTLED: f64 = 0.15;
/// From this share of the host's own work on the host is the bound.
pub const HOST: f64 = 0.6;

/// Result of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub cause: Cause,
    /// Maximum share of the training thread's time that removing the cause would gain; `None` if
    /// unknown.
    pub gain: Option<f64>,
    /// Weight relative to other findings: a share of time.
    pub weight: f64,
    /// The parts of the thread's time that it concerns; the line with most of them is reported.
    pub parts: &'static [Part],
    /// The figures that led to it.
    pub evidence: Vec<Evidence>,
    /// Whether all figures that could contradict it were measured.
    pub complete: bool,
}

named!(
    /// What else takes time, whether or not it is a cause itself.
    CompetingCost {
        /// Waiting for batches, or making them.
        Input = "input",
        /// Collectives.
        Communication = "collectives",
        /// Dispatching work to the GPU, or running Python.
        Host = "Python and launches",
        /// Computing on the host.
        HostOperators = "operators on the host",
        /// Waiting at OpenMP barriers.
        Barrier = "waiting at OpenMP barriers",
        Compile = "torch.compile at work",
        /// The device has no spare time.
        BusyDevice = "a GPU with no time to spare",
        /// Work that is no cause: checkpoints, code of the user's, sleep.
        Other = "something that is none of these causes",
    }
);

/// A rule: `None` if its cause does not apply.
pub type Rule = fn(&Figures) -> Option<Finding>;

/// All of them. Their order does not matter.
pub const RULES: [Rule; 11] = [
    throttled,
    gpu_bound,
    spinning,
    input,
    cpu_starved,
    sync,
    copy,
    launch,
    communication,
    host_compute,
    barrier,
];

fn is(figure: &'static str, value: f64, from: f64) -> Evidence {
    Evidence {
        figure,
        value,
        at_least: Some(from),
        at_most: None,
    }
}

fn is_not(figure: &'static str, value: f64, to: f64) -> Evidence {
    Evidence {
        figure,
        value,
        at_least: None,
        at_most: Some(to),
    }
}

/// Another part of what is gained; `None` for less than half a percent, which would be shown as
/// none.
fn also(figure: &'static str, value: f64) -> Option<Evidence> {
    const LEAST: f64 = 0.005;
    (value >= LEAST).then_some(Evidence {
        figure,
        value,
        at_least: None,
        at_most: None,
    })
}

/// The device's busy share, where it is known.
fn busy(figures: &Figures) -> Option<f64> {
    figures.device.as_ref()?.busy
}

/// How busy the device was during these parts; its mean if that is unknown.
fn busy_during(figures: &Figures, parts: &[Part]) -> Option<f64> {
    let (mut sum, mut shares) = (0.0, 0.0);
    for &part in parts {
        if let Some(busy) = figures.busy_during(part) {
            sum += busy * figures.of(part);
            shares += figures.of(part);
        }
    }
    match shares > 0.0 {
        true => Some(sum / shares),
        false => busy(figures),
    }
}

/// The share of time that is gained without these parts: necessary work of the device is not. What
/// it holds besides their own shares is added to the evidence.
fn gained(figures: &Figures, parts: &[Part], evidence: &mut Vec<Evidence>) -> f64 {
    let own: f64 = parts.iter().map(|part| figures.of(*part)).sum();
    let gained = figures.gained(parts);
    let gained = busy(figures).map_or(gained, |busy| gained.min(1.0 - busy));
    evidence.extend(also("without_cpu_meanwhile", gained - own));
    gained
}

/// Evidence that the device has spare time during these parts; `None` if it has not, or that is
/// unknown.
fn has_spare(figures: &Figures, parts: &[Part]) -> Option<(f64, Evidence)> {
    let gain = 1.0 - busy(figures)?;
    let evidence = match parts {
        // The device is busy while the host waits for it, and idle after: what its windows show of
        // that depends on their length.
        [Part::Sync | Part::Copy] => is_not("gpu_busy", 1.0 - gain, SPARE),
        _ => is_not("gpu_busy_meanwhile", busy_during(figures, parts)?, SPARE),
    };
    (evidence.value <= SPARE).then_some((gain, evidence))
}

/// Whether the host's other work takes more of its time than these parts, counted in full.
pub fn host_takes_more(figures: &Figures, parts: &[Part], stands_out: f64) -> bool {
    let sum = |is_of: bool, all: &[Part]| -> f64 {
        let own = all.iter().filter(|part| parts.contains(part) == is_of);
        own.map(|part| figures.of(*part)).sum()
    };
    let host = [Part::Dispatch, Part::Python, Part::Compute];
    !parts.is_empty() && sum(true, &Part::ALL) < stands_out * sum(false, &host)
}

/// The largest other part of the thread's time: a cause must exceed it.
pub fn competing(figures: &Figures, parts: &[Part]) -> Option<(CompetingCost, f64)> {
    let of = |part| match parts.contains(&part) {
        true => 0.0,
        false => figures.of(part),
    };
    let waits_a_lot = figures.of(Part::NoCpu) >= 2.0 * NO_CPU;
    let has_host = parts.contains(&Part::Dispatch) || waits_a_lot;
    // Launches for a busy device are back-pressure: then the device is the competing cost.
    let is_late = !figures.cuda
        || busy_during(figures, &[Part::Dispatch, Part::Python]).is_none_or(|busy| busy <= SPARE);
    let host = match has_host || !is_late {
        true => 0.0,
        false => HOSTS_PART * (figures.of(Part::Dispatch) + of(Part::Python)),
    };
    let operators = match figures.cuda {
        true => of(Part::Compute),
        false => HOSTS_PART * of(Part::Compute),
    };
    let device = figures.device.as_ref();
    let saturated = match parts.is_empty() || parts.contains(&Part::Sync) {
        true => 0.0,
        false => device.map_or(0.0, |device| device.saturated),
    };
    let all = [
        (
            CompetingCost::Input,
            of(Part::InputWait) + of(Part::InputOwn),
        ),
        (CompetingCost::Communication, of(Part::Communication)),
        (CompetingCost::Host, host),
        (CompetingCost::HostOperators, operators),
        (CompetingCost::Barrier, of(Part::Barrier)),
        (CompetingCost::Compile, of(Part::Compile)),
        (CompetingCost::BusyDevice, saturated),
        (CompetingCost::Other, of(Part::Other)),
    ];
    let most = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.filter(|(_, weight)| *weight > 0.0)
}

fn throttled(figures: &Figures) -> Option<Finding> {
    let device = figures.device.as_ref()?;
    let (hot, busy) = (device.hot?, device.busy?);
    (hot >= THROTTLED && busy >= 0.5).then(|| Finding {
        cause: Cause::Throttled,
        gain: None,
        weight: hot * busy,
        parts: &[],
        evidence: vec![
            is("clocks_held_down", hot, THROTTLED),
            is("gpu_busy", busy, 0.5),
        ],
        complete: true,
    })
}

fn gpu_bound(figures: &Figures) -> Option<Finding> {
    let device = figures.device.as_ref()?;
    // With reduced clocks its figures are those of a slower device; those of a shared one need not
    // be this run's.
    if device.hot.is_some_and(|hot| hot >= HELD) || device.shared {
        return None;
    }
    if device.busy.is_none() {
        let sm = device.sm.filter(|&sm| sm >= COMPUTES_ALONE)?;
        return Some(Finding {
            cause: Cause::GpuCompute,
            gain: None,
            weight: sm,
            parts: &[Part::Sync, Part::Dispatch],
            evidence: vec![is("sm_active", sm, COMPUTES_ALONE)],
            complete: false,
        });
    }
    let busy = device.busy.filter(|&busy| busy >= BUSY)?;
    let sm = device.sm.filter(|&sm| sm >= COMPUTES_SM);
    // If multiprocessors were measured, they decide.
    let power = device
        .power
        .filter(|&power| device.sm.is_none() && power >= COMPUTES_POWER);
    let dram = device
        .dram
        .filter(|&dram| dram >= DRAM && dram >= device.sm.unwrap_or(0.0) * 0.8);
    if sm.is_none() && power.is_none() && dram.is_none() {
        return None;
    }
    let mut evidence = vec![is("gpu_busy", busy, BUSY)];
    evidence.extend(sm.map(|sm| is("sm_active", sm, COMPUTES_SM)));
    evidence.extend(power.map(|power| is("power_of_limit", power, COMPUTES_POWER)));
    evidence.extend(dram.map(|dram| is("dram_active", dram, DRAM)));
    Some(Finding {
        cause: match dram {
            Some(_) => Cause::GpuMemory,
            None => Cause::GpuCompute,
        },
        gain: Some(1.0 - busy),
        weight: busy,
        parts: &[Part::Sync, Part::Dispatch],
        evidence,
        complete: sm.is_some() || dram.is_some(),
    })
}

/// Whether the device is busy and does not seem to compute, while there are other ranks to wait
/// for: collectives' kernels spin.
pub fn may_spin(figures: &Figures) -> bool {
    let is_busy = busy(figures).is_some_and(|busy| busy >= BUSY);
    is_busy && figures.nccl && figures.ranks.world > 1 && gpu_bound(figures).is_none()
}

/// Busy with kernels that do little, while there are other ranks to wait for. Where they do more
/// than nearly nothing, they may be small ones; but a host that waits for the device for most of
/// the time launches few.
fn spinning(figures: &Figures) -> Option<Finding> {
    let device = figures.device.as_ref()?;
    let busy = device.busy.filter(|&busy| busy >= BUSY)?;
    let waits = figures.of(Part::Sync);
    let most = match waits >= WAITS_MOSTLY {
        true => COMPUTES_SM,
        false => SPINS_SM,
    };
    let sm = device.sm.filter(|&sm| sm < most)?;
    let mut evidence = vec![is("gpu_busy", busy, BUSY), is_not("sm_active", sm, most)];
    if most > SPINS_SM {
        evidence.push(is("waiting_for_gpu", waits, WAITS_MOSTLY));
    }
    (figures.nccl && figures.ranks.world > 1).then(|| Finding {
        cause: Cause::Communication,
        gain: spun(sm, device.sm_range),
        weight: busy - sm,
        parts: &[Part::Communication, Part::Sync],
        evidence,
        complete: false,
    })
}

/// The share of the time in which collectives spin: they use as many multiprocessors as were active
/// where fewest were, and all else [`COMPUTING_SM`] of them, or as many as where most were. `None`
/// where windows are longer than what they would tell apart.
fn spun(sm: f64, range: Option<(f64, f64)>) -> Option<f64> {
    let (least, most) = range.filter(|&(least, _)| least < TOLD_APART * sm)?;
    let most = most.max(COMPUTING_SM);
    Some((most - sm) / (most - least))
}

fn input(figures: &Figures) -> Option<Finding> {
    let share = figures.of(Part::InputWait) + figures.of(Part::InputOwn);
    let parts = &[Part::InputWait, Part::InputOwn];
    let (busy, during) = (busy(figures), busy_during(figures, parts));
    if share < WORTH || during.is_some_and(|busy| busy > BUSY) {
        return None;
    }
    let mut evidence = vec![is("input", share, WORTH)];
    evidence.extend(during.map(|busy| is_not("gpu_busy_meanwhile", busy, BUSY)));
    let makes_batches = figures.of(Part::InputOwn) > figures.of(Part::InputWait);
    // A lack of CPUs for workers matters only while they are waited for.
    let cause = if !makes_batches && is_starved(figures, &mut evidence) {
        Cause::CpuStarved
    } else if makes_batches {
        match figures.own_reads >= STORAGE {
            true => {
                evidence.push(is("reading", figures.own_reads, STORAGE));
                Cause::InputStorage
            }
            false => Cause::InputWork,
        }
    } else if figures.workers_read >= STORAGE {
        evidence.push(is("workers_reading", figures.workers_read, STORAGE));
        Cause::InputStorage
    } else {
        Cause::InputWork
    };
    let gain = gained(figures, parts, &mut evidence);
    Some(Finding {
        cause,
        gain: Some(gain),
        weight: share,
        parts,
        evidence,
        complete: busy.is_some() || !figures.cuda,
    })
}

/// Whether workers want more CPUs than there are.
fn is_starved(figures: &Figures, evidence: &mut Vec<Evidence>) -> bool {
    if figures.workers_queue >= WORKERS_STARVED {
        evidence.push(is(
            "workers_without_cpu",
            figures.workers_queue,
            WORKERS_STARVED,
        ));
        return true;
    }
    false
}

fn cpu_starved(figures: &Figures) -> Option<Finding> {
    let share = figures.of(Part::NoCpu);
    if share < NO_CPU {
        return None;
    }
    let full = figures
        .cpus_of_allowed()
        .map(|(used, allowed)| used / allowed);
    let mut evidence = vec![is("without_cpu", share, NO_CPU)];
    let is_full = full.filter(|&full| full >= CPUS_FULL);
    evidence.extend(is_full.map(|full| is("cpus_used_of_allowed", full, CPUS_FULL)));
    // An OpenMP thread without a CPU keeps the training thread at its barrier.
    let barrier = figures.of(Part::Barrier);
    evidence.extend(also("omp_barrier", barrier));
    Some(Finding {
        cause: Cause::CpuStarved,
        gain: Some(share + barrier),
        // A thread without a CPU slows down everything that it does, so it weighs more than its
        // share.
        weight: share + WORTH,
        parts: &[Part::NoCpu],
        evidence,
        complete: true,
    })
}

fn sync(figures: &Figures) -> Option<Finding> {
    waits_for_device(figures, Part::Sync, Cause::Sync, "gpu_sync", &[Part::Sync])
}

fn copy(figures: &Figures) -> Option<Finding> {
    waits_for_device(figures, Part::Copy, Cause::Copy, "gpu_copy", &[Part::Copy])
}

fn waits_for_device(
    figures: &Figures,
    part: Part,
    cause: Cause,
    name: &'static str,
    parts: &'static [Part],
) -> Option<Finding> {
    let share = figures.of(part);
    let (spare, evidence) = has_spare(figures, parts)?;
    (share >= WORTH && figures.native).then(|| Finding {
        cause,
        gain: Some(share.min(spare)),
        weight: share,
        parts,
        evidence: vec![is(name, share, WORTH), evidence],
        complete: true,
    })
}

fn launch(figures: &Figures) -> Option<Finding> {
    let (dispatch, python) = (figures.of(Part::Dispatch), figures.of(Part::Python));
    let share = dispatch + python;
    // A thread that is slow because it has no CPU is not slow by itself.
    if share < HOST || !figures.native || figures.of(Part::NoCpu) >= 2.0 * NO_CPU {
        return None;
    }
    let parts = &[Part::Dispatch, Part::Python];
    let has_device = figures.gpu_used || (figures.cuda && figures.device.is_some());
    let cause = match python > dispatch {
        true => Cause::Python,
        false if figures.gpu_used => Cause::Launch,
        false => Cause::Dispatch,
    };
    // The gain is that of the cause that is reported; launch-bound covers both.
    let named: &[Part] = match cause {
        Cause::Launch => parts,
        Cause::Python => &[Part::Python],
        _ => &[Part::Dispatch],
    };
    let (weight, evidence) = match has_device {
        true => (HOSTS_PART * share, Some(has_spare(figures, parts)?.1)),
        false => (share, None),
    };
    let mut all = vec![is("python_and_dispatch", share, HOST)];
    all.extend(evidence);
    let gain = gained(figures, named, &mut all);
    Some(Finding {
        cause,
        gain: Some(gain),
        weight,
        parts,
        evidence: all,
        // The larger one is reported, and should be clearly larger.
        complete: python.max(dispatch) >= 1.3 * python.min(dispatch),
    })
}

fn communication(figures: &Figures) -> Option<Finding> {
    let share = figures.of(Part::Communication);
    (share >= WORTH).then(|| Finding {
        cause: Cause::Communication,
        gain: Some(share),
        weight: share,
        parts: &[Part::Communication],
        evidence: vec![is("collectives", share, WORTH)],
        // Ranks of other nodes may be the ones that all wait for.
        complete: figures.ranks.all_seen(),
    })
}

/// Operators on the host, where there is no GPU, or it is not used.
fn host_compute(figures: &Figures) -> Option<Finding> {
    let (compute, dispatch) = (figures.of(Part::Compute), figures.of(Part::Dispatch));
    let barrier = figures.of(Part::Barrier);
    // An operator that waits for its slowest thread is at work.
    let share = compute + dispatch + barrier;
    // A thread that is slow because it has no CPU is not slow by itself.
    let starves = figures.of(Part::NoCpu) >= 2.0 * NO_CPU;
    if starves || !figures.native || share < HOST || compute < dispatch.max(barrier) {
        return None;
    }
    let mut evidence = vec![is("host_operators", share, HOST)];
    if figures.gpu_used || figures.device.is_some() {
        let busy = busy(figures).filter(|&busy| busy <= UNUSED)?;
        evidence.push(is_not("gpu_busy", busy, UNUSED));
    }
    Some(Finding {
        cause: Cause::HostCompute,
        gain: None,
        weight: HOSTS_PART * (compute + dispatch),
        parts: &[Part::Compute, Part::Dispatch],
        evidence,
        complete: true,
    })
}

/// Waits of an operator for its slowest thread.
fn barrier(figures: &Figures) -> Option<Finding> {
    let share = figures.of(Part::Barrier);
    let parts = &[Part::Barrier];
    let during = busy_during(figures, parts);
    if share < WORTH || during.is_some_and(|busy| busy > BUSY) {
        return None;
    }
    let mut evidence = vec![is("omp_barrier", share, WORTH)];
    evidence.extend(during.map(|busy| is_not("gpu_busy_meanwhile", busy, BUSY)));
    let allowed = figures.cpus_allowed();
    let many = figures.omp_threads.zip(allowed);
    let many = many.is_some_and(|(threads, allowed)| threads as f64 > allowed);
    let workers = figures.barrier;
    let cause = match workers {
        _ if many => Cause::BarrierThreads,
        Some(workers) if workers.without_cpu >= WORKERS_STARVED => {
            let share = workers.without_cpu;
            evidence.push(is("omp_threads_without_cpu", share, WORKERS_STARVED));
            Cause::BarrierThreads
        }
        Some(workers) if workers.computing >= UNEVEN => {
            evidence.push(is("omp_threads_computing", workers.computing, UNEVEN));
            Cause::BarrierUneven
        }
        _ => Cause::BarrierShort,
    };
    let gain = gained(figures, parts, &mut evidence);
    Some(Finding {
        cause,
        gain: Some(gain),
        weight: share,
        parts,
        evidence,
        complete: workers.is_some(),
    })
}
