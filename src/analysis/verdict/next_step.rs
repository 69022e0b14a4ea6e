//! One next step for each cause, which starts from the settings as they are.

use super::Cause;
use super::figures::{Figures, Part};
use crate::analysis::stack_facts::Line;
use crate::model::profile::Profile;

/// Workers past which more are not advised, whatever the CPUs.
const MOST_WORKERS: u64 = 64;
/// Below this share of their time workers are not what the trainer waits for.
const WORKERS_BUSY: f64 = 0.6;

/// What to do first.
pub fn next_step(profile: &Profile, cause: Cause, at: Option<Line>, figures: &Figures) -> String {
    let place = at.and_then(|line| place(profile, line));
    let at = place.map_or(String::new(), |place| format!(" at {place}"));
    match cause {
        Cause::InputWork => input(figures),
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
        Cause::Launch => match figures.conditions.batch_size {
            Some(size) => format!("larger batches (now {size}), or torch.compile: fewer launches for the same work"),
            None => "larger batches, or torch.compile: fewer launches for the same work".to_owned(),
        },
        Cause::Python => format!("take Python out of the step{at}, or torch.compile it"),
        Cause::GpuCompute => gpu(figures),
        Cause::GpuMemory => "fuse operators that read and write the same memory: torch.compile; channels_last for convolutions"
            .to_owned(),
        Cause::Communication => communication(figures, &at),
        Cause::Sync => {
            let what = figures.words.get(&(Part::Sync as usize));
            let what = what.map_or("the wait", String::as_str);
            format!("take {what}{at} out of the step, or do it every 50 steps: each one leaves the GPU without work")
        }
        Cause::Copy => match figures.conditions.pin_memory {
            Some(false) => "pin_memory=True in the DataLoader (now off), and .to(device, non_blocking=True)".to_owned(),
            Some(true) => format!("pin_memory is on: copy{at} with non_blocking=True"),
            None => format!("copy from pinned memory{at}, with non_blocking=True"),
        },
        Cause::CpuStarved => starved(figures),
        Cause::Throttled => "clocks are held down by heat or the power supply: look at cooling and at `nvidia-smi -q -d PERFORMANCE`"
            .to_owned(),
        Cause::HostCompute => host_compute(figures),
    }
}

fn place(profile: &Profile, (function, line): Line) -> Option<String> {
    let function = profile.functions.get(function.index())?;
    let file = function.file.rsplit('/').next().unwrap_or_default();
    Some(format!("{file}:{line}"))
}

fn workers_now(figures: &Figures) -> String {
    match figures.conditions.workers {
        Some(workers) => format!(" (workers now {workers})"),
        None => String::new(),
    }
}

/// `8.3 of 16 CPUs used`.
fn cpus(figures: &Figures) -> Option<(f64, f64)> {
    Some((figures.cpus_used?, figures.cpus_allowed()?))
}

fn input(figures: &Figures) -> String {
    let task = figures.tasks.iter().find(|(task, share)| {
        !matches!(task.name(), "idle" | "cpu_wait" | "gil_wait") && *share > 0.0
    });
    let heaviest = task.map_or(String::new(), |(task, share)| {
        format!(
            "; of their time {} takes {:.0} %",
            task.name(),
            share * 100.0
        )
    });
    let left =
        cpus(figures).map(|(used, allowed)| ((allowed - used).floor().max(0.0), used, allowed));
    let known = left.map_or(String::new(), |(_, used, allowed)| {
        format!(" ({used:.1} of {allowed:.0} CPUs used)")
    });
    match (figures.conditions.workers, figures.workers_busy, left) {
        (Some(0), _, left) => {
            let workers = left.map_or(4, |(left, ..)| (left as u64).clamp(1, 8));
            format!("workers 0 -> {workers}{known}: batches are made while the model computes")
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
        (Some(workers), _, Some((left, ..))) if left >= 1.0 => {
            let wanted = wanted(workers, figures.of(Part::InputWait));
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
                "no CPU is left for more workers (now {workers}){known}: cheaper batches{heaviest}"
            )
        }
        (Some(workers), _, None) => {
            format!("more workers (now {workers}), if there are CPUs for them{heaviest}")
        }
        (None, ..) => {
            "more DataLoader workers, or cheaper batches: the part WAITS says what takes the time"
                .to_owned()
        }
    }
}

/// As many as would be needed to hide the wait, if each did as much as now.
fn wanted(workers: u64, waits: f64) -> u64 {
    let factor = 1.0 / (1.0 - waits.clamp(0.0, 0.9));
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
    if figures.cuda {
        return "operators compute on the host while a GPU is idle: move the model and its batches there (.to(\"cuda\"))".to_owned();
    }
    let threads = match figures.conditions.omp_num_threads {
        Some(threads) => format!("OMP_NUM_THREADS now {threads}"),
        None => "OMP_NUM_THREADS not set".to_owned(),
    };
    match cpus(figures) {
        Some((used, allowed)) if used < IDLE * allowed => {
            format!(
                "{used:.1} of {allowed:.1} CPUs compute: more threads for the operators ({threads})"
            )
        }
        Some((used, allowed)) => format!(
            "{used:.1} of {allowed:.1} CPUs compute ({threads}): bfloat16 or channels_last where this CPU gains by it, or a GPU; the \
             table OPERATORS says what takes most"
        ),
        None => format!(
            "operators compute on the host ({threads}): the table OPERATORS says what takes most"
        ),
    }
}

fn starved(figures: &Figures) -> String {
    let known = cpus(figures).map_or(String::new(), |(used, allowed)| {
        format!(" ({used:.1} of {allowed:.1} CPUs used)")
    });
    const OWN: f64 = 0.7;
    if cpus(figures).is_some_and(|(used, allowed)| used < OWN * allowed) {
        return format!(
            "others take the CPUs{known}: look for them on this machine (top), or for a quota of a cgroup above"
        );
    }
    let mut now = Vec::new();
    now.extend(
        figures
            .conditions
            .workers
            .map(|workers| format!("workers {workers}")),
    );
    let threads = figures.conditions.omp_num_threads;
    now.push(match threads {
        Some(threads) => format!("OMP_NUM_THREADS {threads}"),
        None => "OMP_NUM_THREADS not set".to_owned(),
    });
    let more = match figures.conditions.cpu_quota {
        Some(quota) => format!("more than the cgroup's {quota} CPUs"),
        None => "more CPUs".to_owned(),
    };
    format!(
        "{more}, or fewer threads that want them: now {}{known}",
        now.join(", ")
    )
}
