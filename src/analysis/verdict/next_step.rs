//! One next step for each cause, based on the present settings.

use super::Cause;
use super::figures::{Figures, Part};
use super::rules::{BUSY, CPUS_FULL, Finding, NO_CPU, SPARE, may_spin};
use crate::model::facts::Line;
use crate::model::profile::Profile;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

/// More workers than this are never advised.
const MOST_WORKERS: u64 = 64;
/// From this share of the workers' work on a single line is what to look at.
const ONE_LINE: f64 = 0.5;
/// Workers that are busy for a lower share of their time are not what the trainer waits for.
const WORKERS_BUSY: f64 = 0.6;

/// Whether the copies that are waited for go from the GPU to the host, by the call's name.
fn copies_to_host(figures: &Figures) -> bool {
    const CALLS: &[&str] = &[".cpu()", ".tolist()", ".numpy()"];
    let label = figures.labels.get(&(Part::Copy as usize));
    label.is_some_and(|label| {
        label.contains("GPU to host") || CALLS.iter().any(|call| label.starts_with(call))
    })
}

/// The next step for a cause.
pub fn next_step(profile: &Profile, cause: Cause, at: Option<Line>, figures: &Figures) -> String {
    let place = at.and_then(|line| place(profile, line));
    let at = place.map_or(String::new(), |place| format!(" at {place}"));
    match cause {
        Cause::InputWork => input(profile, figures),
        Cause::InputStorage if figures.of(Part::InputOwn) > figures.of(Part::InputWait) => format!(
            "{:.0} % of the input is spent in reads{at}: let workers read ahead (num_workers), keep the data on a local disk or in \
             memory, or read fewer and larger files",
            figures.own_reads * 100.0
        ),
        Cause::InputStorage => format!(
            "workers spend {:.0} % of their time in reads: keep the data on a local disk or in memory, or read fewer and larger \
             files{}",
            figures.workers_read * 100.0,
            workers_now(figures)
        ),
        Cause::Launch => {
            let size = figures.conditions.batch_size;
            let now = size.map_or(String::new(), |size| format!(" (now {size})"));
            // https://docs.pytorch.org/docs/stable/generated/torch.compile.html: this mode has CUDA
            // graphs.
            let or = match figures.compiled {
                true => "torch.compile's mode=\"reduce-overhead\" (CUDA graphs)",
                false => "torch.compile",
            };
            format!("larger batches{now}, or {or}: fewer launches for the same work")
        }
        Cause::Python if figures.is_of_gil() => {
            let holder = figures.gil_holder.and_then(|line| self::place(profile, line));
            let holder = holder.map_or(String::new(), |place| format!(" at {place}"));
            format!(
                "another thread holds the GIL{holder}: move its work into a process, or into code that releases the lock"
            )
        }
        Cause::Python if figures.compiled => format!(
            "take Python out of the step{at}: TORCH_LOGS=graph_breaks lists what torch.compile leaves to Python"
        ),
        Cause::Python => format!("take Python out of the step{at}, or torch.compile it"),
        Cause::GpuCompute => gpu(figures),
        Cause::GpuMemory if figures.compiled => "read and write less memory: a smaller type (bf16), channels_last for convolutions, \
             torch.compile's mode=\"max-autotune\""
            .to_owned(),
        Cause::GpuMemory => "fuse operators that read and write the same memory: torch.compile; channels_last for convolutions"
            .to_owned(),
        Cause::Communication => communication(figures, &at),
        Cause::LateRank => {
            let (or, hide) = match figures.gpu_used {
                true => (",", ", or let it run while the GPU computes"),
                false => (", or", ""),
            };
            format!(
                "the others wait for what this rank alone does{at}: share it out{or} take it out of the step{hide}"
            )
        }
        Cause::Sync => {
            let what = figures.labels.get(&(Part::Sync as usize));
            let what = what.map_or("the wait", String::as_str);
            let busy = figures.device.as_ref().and_then(|device| device.busy);
            let why = match busy.is_none_or(|busy| busy <= SPARE) {
                true => "each one leaves the GPU without work",
                false => "then the host can run ahead",
            };
            format!("take {what}{at} out of the step, or do it every 50 steps: {why}")
        }
        Cause::Copy if copies_to_host(figures) => format!(
            "copy{at} less often, or into pinned memory with non_blocking=True, and read it only after the copy's event"
        ),
        Cause::Copy => match figures.conditions.pin_memory {
            Some(false) => format!("copy from pinned memory{at} (pin_memory=True in the DataLoader, now off), with non_blocking=True"),
            Some(true) => format!("pin_memory is on: copy{at} with non_blocking=True"),
            None => format!("copy from pinned memory{at}, with non_blocking=True"),
        },
        Cause::CpuStarved => starved(figures),
        Cause::Throttled => "clocks are held down by heat or the power supply: look at cooling and at `nvidia-smi -q -d PERFORMANCE`"
            .to_owned(),
        Cause::Dispatch if figures.compiled => format!(
            "many small operators{at}: larger batches, or foreach or fused optimizers: less dispatch for the same work"
        ),
        Cause::Dispatch => format!(
            "many small operators{at}: larger batches, foreach or fused optimizers, or torch.compile: less dispatch for the same work"
        ),
        Cause::HostCompute => host_compute(figures),
        Cause::BarrierThreads => {
            let allowed = figures.cpus_allowed().map_or(1, |cpus| (cpus as u64).max(1));
            let want = match figures.omp_threads {
                Some(threads) if threads > allowed => format!("want {}", plural(allowed, "CPU")),
                _ => "share their CPUs with other threads".to_owned(),
            };
            format!(
                "OpenMP threads {want} ({}): fewer, by torch.set_num_threads() or OMP_NUM_THREADS; of each rank as many as its part of \
                 the CPUs",
                omp_threads(figures)
            )
        }
        Cause::BarrierUneven => format!(
            "OpenMP threads share the work unevenly{at} ({}): OMP_PROC_BIND=true keeps each on a CPU; or fewer of them; the table \
             OPERATORS says in which operators",
            omp_threads(figures)
        ),
        Cause::BarrierShort => format!(
            "parallel regions{at} are too short for their threads ({}): try torch.set_num_threads(1), or larger batches",
            omp_threads(figures)
        ),
    }
}

/// What comes after the next step for a cause; empty if that is not known.
pub fn after_it(cause: Cause, figures: &Figures) -> String {
    const NEARLY: f64 = 0.7;
    match figures.workers_limit(cause).filter(|&work| work >= NEARLY) {
        Some(work) => format!(
            "; batches come next: workers make them for {:.0} % of their time",
            work * 100.0
        ),
        None => String::new(),
    }
}

/// A large part of the time, listed where no cause stands out.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Cost {
    /// Description.
    pub what: &'static str,
    /// Share of the training thread's time after start-up; for a device, of the time with that
    /// state.
    pub share: f64,
    /// The next step, for people.
    pub next_step: String,
    /// Maximum speedup without it, a factor.
    #[serde(rename = "speedup")]
    pub at_most: Option<f64>,
}

/// The two largest.
pub fn costs(profile: &Profile, findings: &[Finding], figures: &Figures) -> Vec<Cost> {
    const MOST: usize = 2;
    const WORTH: f64 = 0.1;
    let mut costs: Vec<Cost> = findings
        .iter()
        .filter(|finding| {
            matches!(
                finding.cause,
                Cause::GpuCompute | Cause::GpuMemory | Cause::Throttled
            )
        })
        .map(|finding| Cost {
            what: finding.cause.name(),
            share: finding.weight,
            next_step: next_step(profile, finding.cause, None, figures),
            at_most: None,
        })
        .collect();
    let found = |part: Part| {
        let mut all = findings.iter();
        let found = all
            .find(|finding| finding.parts.contains(&part) && finding.cause != Cause::HostCompute);
        found.map(|finding| finding.cause)
    };
    let (dispatch, python) = (figures.of(Part::Dispatch), figures.of(Part::Python));
    let host = match (python > dispatch, figures.gpu_used) {
        (true, _) => (&[Part::Python][..], "Python", Cause::Python),
        (false, true) => (&[Part::Dispatch][..], "launches", Cause::Launch),
        (false, false) => (
            &[Part::Dispatch][..],
            "dispatch of operators",
            Cause::Dispatch,
        ),
    };
    let of_causes = [
        (
            &[Part::InputWait, Part::InputOwn][..],
            "input",
            Cause::InputWork,
        ),
        (&[Part::Sync][..], "waiting for the GPU", Cause::Sync),
        (&[Part::Copy][..], "copies", Cause::Copy),
        (
            &[Part::Communication][..],
            "collectives",
            Cause::Communication,
        ),
        (&[Part::NoCpu][..], "waiting for a CPU", Cause::CpuStarved),
        host,
        (
            &[Part::Compute][..],
            "operators on the host",
            Cause::HostCompute,
        ),
        (
            &[Part::Barrier][..],
            "waiting at OpenMP barriers",
            Cause::BarrierShort,
        ),
    ];
    let busy_of_device = figures.device.as_ref().and_then(|device| device.busy);
    // What the device has to do is not gained.
    let most = match busy_of_device {
        Some(busy) if figures.gpu_used => 1.0 - busy,
        _ => 1.0,
    };
    for (parts, what, cause) in of_causes {
        // Without native frames, Python includes all native code that it calls.
        if cause == Cause::Python && !figures.native {
            continue;
        }
        let share = parts.iter().map(|part| figures.of(*part)).sum();
        // If the device has no spare time, or that is unknown, the host may only wait for it.
        let of_host = matches!(
            cause,
            Cause::Sync | Cause::Copy | Cause::Python | Cause::Launch
        );
        let busy = match cause {
            // The device is busy while the host waits for it, and idle after.
            Cause::Sync | Cause::Copy => None,
            _ => parts.first().and_then(|part| figures.busy_during(*part)),
        };
        let busy = busy.or(busy_of_device);
        // A wait is bounded by the device's idle time, however little that is.
        let most_busy = match cause {
            Cause::Sync | Cause::Copy => BUSY,
            _ => SPARE,
        };
        if of_host && figures.gpu_used && busy.is_none_or(|busy| busy > most_busy) {
            continue;
        }
        let cause = parts.iter().find_map(|part| found(*part)).unwrap_or(cause);
        costs.push(Cost {
            what,
            share,
            next_step: next_step(profile, cause, figures.line(parts), figures),
            at_most: (cause != Cause::HostCompute)
                .then(|| speedup(share.min(most)))
                .flatten(),
        });
    }
    if let Some(device) = figures.device.as_ref().filter(|_| may_spin(figures))
        && let (Some(busy), Some(sm)) = (device.busy, device.sm)
    {
        costs.push(Cost {
            what: "collectives that spin on the GPU, or small kernels",
            share: busy - sm,
            next_step: next_step(profile, Cause::Communication, None, figures),
            at_most: None,
        });
    }
    let compile = figures.of(Part::Compile);
    costs.push(Cost {
        what: "torch.compile at work",
        share: compile,
        next_step: "it is paid once for each shape and each start: record for longer; keep its cache (TORCHINDUCTOR_CACHE_DIR); where \
                    it recompiles (TORCH_LOGS=recompiles), dynamic=True"
            .to_owned(),
        at_most: speedup(compile),
    });
    let at = figures
        .line(&[Part::Other])
        .and_then(|line| place(profile, line));
    costs.push(Cost {
        what: "other things",
        share: figures.of(Part::Other),
        next_step: format!(
            "PHASE x ACTIVITY and WAITS say what{}",
            at.map_or(String::new(), |at| format!(", most of it at {at}"))
        ),
        at_most: speedup(figures.of(Part::Other)),
    });
    costs.retain(|cost| cost.share >= WORTH);
    costs.sort_by(|a, b| b.share.total_cmp(&a.share));
    costs.truncate(MOST);
    costs
}

/// Amdahl's law; `None` for nearly all of the time, which is meaningless.
fn speedup(share: f64) -> Option<f64> {
    const MOST: f64 = 0.95;
    (share < MOST).then(|| 1.0 / (1.0 - share))
}

fn plural(count: u64, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

/// `4 OpenMP threads (OMP_NUM_THREADS not set)`: the number that was seen, because the program may
/// have changed it since.
fn omp_threads(figures: &Figures) -> String {
    let variable = match figures.conditions.omp_num_threads {
        Some(threads) => format!("OMP_NUM_THREADS {threads}"),
        None => "OMP_NUM_THREADS not set".to_owned(),
    };
    match figures.omp_threads {
        Some(threads) => format!("{} seen, {variable}", plural(threads, "OpenMP thread")),
        None => variable,
    }
}

fn place(profile: &Profile, (function, line): Line) -> Option<String> {
    let function = profile.function(function)?;
    let file = function.file.rsplit('/').next().unwrap_or_default();
    Some(format!("{file}:{line}"))
}

fn workers_now(figures: &Figures) -> String {
    match figures.conditions.workers {
        Some(workers) => format!(" (workers now {workers})"),
        None => String::new(),
    }
}

fn input(profile: &Profile, figures: &Figures) -> String {
    let task = figures
        .tasks
        .iter()
        .find(|(task, share)| task.is_work() && *share > 0.0);
    let mut heaviest = task.map_or(String::new(), |(task, share)| {
        format!(
            "; of their time {} takes {:.0} %",
            task.name(),
            share * 100.0
        )
    });
    let line = figures
        .workers_line
        .filter(|(_, share)| *share >= ONE_LINE)
        .and_then(|(line, share)| Some((place(profile, line)?, share)));
    if let Some((at, share)) = line {
        let _ = write!(
            heaviest,
            ", and {:.0} % of their work is at {at}",
            share * 100.0
        );
    }
    let left = figures.cpus_free().map(|left| left.floor().max(0.0));
    let known = cpus_used(figures);
    match (figures.conditions.workers, figures.workers_busy, left) {
        (Some(0), _, left) => {
            let own = figures.of(Part::InputOwn);
            // One more than make batches as fast as the model takes them.
            let hide = wanted(figures, 1, own);
            let most = left.map_or(MOST_WORKERS, |left| (left as u64).max(1));
            let cheaper = match hide > most {
                true => format!("; it would take {hide} to hide all of it: cheaper batches, too"),
                false => String::new(),
            };
            format!(
                "workers 0 -> {}{known}: batches are made while the model computes{cheaper}",
                hide.min(most)
            )
        }
        (Some(workers), Some(busy), _) if busy < WORKERS_BUSY => format!(
            "workers are busy for {:.0} % only: not more of them (now {workers}), but prefetch_factor ({}), and smaller batches to \
             hand over{heaviest}",
            busy * 100.0,
            match figures.conditions.prefetch {
                Some(batches) => format!("now {batches}"),
                None => "not read".to_owned(),
            }
        ),
        (Some(workers), _, Some(left)) if left >= 1.0 && workers >= MOST_WORKERS => {
            format!("there are many workers already (now {workers}){known}: cheaper batches{heaviest}")
        }
        (Some(workers), _, Some(left)) if left >= 1.0 => {
            let wanted = wanted(figures, workers, figures.of(Part::InputWait));
            let more = wanted
                .min(workers.saturating_add(left as u64))
                .min(MOST_WORKERS);
            format!(
                "workers {workers} -> {}{known}{heaviest}",
                more.max(workers + 1)
            )
        }
        (Some(workers), _, Some(_)) => {
            format!(
                "no CPU is left for more workers (now {workers}){known}{}: cheaper batches{heaviest}",
                lacks(figures)
            )
        }
        (Some(workers), _, None) => {
            format!("more workers (now {workers}), if there are CPUs for them{heaviest}")
        }
        (None, None, _) if figures.of(Part::InputWait) > figures.of(Part::InputOwn) => {
            "what fills the queue is too slow: more threads or processes for it, or cheaper batches: report --by wait says where"
                .to_owned()
        }
        (None, ..) => {
            "more DataLoader workers, or cheaper batches: report --by wait says what takes the time"
                .to_owned()
        }
    }
}

/// ` (3.0 of 16 CPUs used)`; empty if unknown.
fn cpus_used(figures: &Figures) -> String {
    let known = figures.cpus_of_allowed();
    known.map_or(String::new(), |(used, allowed)| {
        format!(" ({} used)", cpus_of(used, allowed))
    })
}

/// `3.0 of 16 CPUs`. A quota may be less than a CPU.
fn cpus_of(used: f64, allowed: f64) -> String {
    let decimals = usize::from(allowed.fract() >= 0.05);
    format!("{used:.1} of {allowed:.decimals$} CPUs")
}

/// `, and threads lack one 30 % of the time that they want it`; empty if they hardly do.
fn lacks(figures: &Figures) -> String {
    match figures.cpus.lacking >= NO_CPU {
        true => format!(
            ", and threads lack one {:.0} % of the time that they want it",
            figures.cpus.lacking * 100.0
        ),
        false => String::new(),
    }
}

/// Number of workers that would hide the wait, if each did as much as now: steps are not shorter
/// than the device's work.
fn wanted(figures: &Figures, workers: u64, waits: f64) -> u64 {
    let busy = figures.device.as_ref().and_then(|device| device.busy);
    let most = busy.map_or(0.9, |busy| (1.0 - busy).clamp(0.0, 0.9));
    let factor = 1.0 / (1.0 - waits.clamp(0.0, most));
    (workers as f64 * factor).ceil().min(MOST_WORKERS as f64) as u64
}

fn gpu(figures: &Figures) -> String {
    let conditions = &figures.conditions;
    match (&conditions.parameter_dtype, &conditions.autocast) {
        (Some(dtype), None) if dtype == "float32" => {
            "autocast to bfloat16 (parameters are float32, and no autocast was seen)".to_owned()
        }
        _ => "the GPU computes: fewer or cheaper operations of the model; the host has nothing to give".to_owned(),
    }
}

fn communication(figures: &Figures, at: &str) -> String {
    match figures.last_rank {
        Some(last) if last.percent >= 50 => {
            format!("one rank arrives last for {} % of the wait{at}: start there", last.percent)
        }
        _ => "fewer or larger collectives: gradient accumulation, bucket_cap_mb, no_sync() in between".to_owned(),
    }
}

fn host_compute(figures: &Figures) -> String {
    const IDLE: f64 = 0.6;
    if figures.cuda && figures.device.is_some() {
        return "operators compute on the host while a GPU is idle: move the model and its batches there (.to(\"cuda\"))".to_owned();
    }
    let threads = omp_threads(figures);
    let (used, allowed) = match figures.cpus_of_allowed() {
        Some(known) => known,
        None => {
            return format!(
                "operators compute on the host ({threads}): the table OPERATORS says what takes most"
            );
        }
    };
    // Over all of the run: in a calm part of it CPUs look idle that others take in the rest.
    let lacks = lacks(figures);
    // Threads that spin at a barrier have a CPU, and compute nothing.
    let computing = (used - figures.cpus.spinning).max(0.0);
    let all_threads = figures
        .omp_threads
        .is_some_and(|threads| threads as f64 >= allowed);
    match computing < IDLE * allowed {
        true if !all_threads && lacks.is_empty() => format!(
            "{computing:.1} of {allowed:.1} CPUs compute: more threads for the operators ({threads})"
        ),
        _ => format!(
            "{computing:.1} of {allowed:.1} CPUs compute{lacks} ({threads}): bfloat16 or channels_last where this CPU gains by it, or a GPU; \
             the table OPERATORS says what takes most"
        ),
    }
}

/// The programs that the run itself starts beside its trainers and workers, if they use a notable
/// part of the CPUs, and at least `least` of them: `3 processes of sh use 1.2 CPUs`.
fn helpers(figures: &Figures, least: f64) -> Option<String> {
    const NOTABLE: f64 = 0.1;
    let all: f64 = figures.helpers.iter().map(|helper| helper.cpus).sum();
    let notable = NOTABLE * figures.cpus_allowed()?;
    let first = figures.helpers.first()?;
    if all < notable.max(least) {
        return None;
    }
    let (s, verb) = match first.processes {
        1 => ("", "uses"),
        _ => ("es", "use"),
    };
    let more = match figures.helpers.len() {
        1 => String::new(),
        _ => format!(", all that this run starts beside it {all:.1}"),
    };
    Some(format!(
        "{} process{s} of {}, which this run starts, {verb} {:.1} CPUs{more}",
        first.processes, first.name, first.cpus
    ))
}

fn starved(figures: &Figures) -> String {
    const BARRIER: f64 = 0.05;
    let used = figures.cpus_of_allowed();
    let is_full = used.is_some_and(|(used, allowed)| used >= CPUS_FULL * allowed);
    let known = cpus_used(figures);
    let outside = figures.wanted_where_others_take_cpus().filter(|_| !is_full);
    let unrecorded = used.map_or(0.0, |(used, allowed)| allowed - used);
    let least = if outside.is_some() { unrecorded } else { 0.0 };
    if let Some(helpers) = helpers(figures, least) {
        return format!(
            "{helpers}{known}: run them before or later, with fewer threads, or on other CPUs"
        );
    }
    if outside.is_some() {
        let fewer = match figures.of(Part::Barrier) >= BARRIER {
            true => format!("; until then OMP_NUM_THREADS=1 ({})", omp_threads(figures)),
            false => String::new(),
        };
        let got = used.map_or(String::new(), |(used, allowed)| {
            format!(": this run got {}", cpus_of(used, allowed))
        });
        return format!(
            "stop other programs on these CPUs (top lists them), or raise a cgroup's quota{got}{fewer}"
        );
    }
    let more = match figures.conditions.cpu_quota {
        Some(quota) => format!("more than the cgroup's {quota} CPUs"),
        None => "more CPUs".to_owned(),
    };
    let mut fewer = Vec::new();
    if figures.omp_threads.is_none_or(|threads| threads > 1) {
        fewer.push(format!("OpenMP threads (now {})", omp_threads(figures)));
    }
    let workers = figures.conditions.workers.filter(|&workers| workers > 0);
    fewer.extend(workers.map(|workers| format!("DataLoader workers (now {workers})")));
    if fewer.is_empty() {
        fewer.push("processes that share them".to_owned());
    }
    format!("{more}, or fewer {}{known}", fewer.join(" or "))
}
