//! `torchspy dump`: a snapshot of every thread of a process, or of a job; or several, and what
//! moved in between.

use crate::analysis::dump::attach::attach;
use crate::analysis::dump::dump;
use crate::analysis::dump::moved::Comparison;
use crate::cli::dump_kernel::{annotate, process_of};
use crate::cli::dump_plan::DumpPlan;
use crate::cli::failure::Failure;
use crate::cli::free_threaded;
use crate::cli::outputs::resolve_recording;
use crate::cli::{hints, messages, target};
use crate::gpu::collector::GpuOptions;
use crate::gpu::select::GpuChoice;
use crate::model::dump::Dump;
use crate::model::run::RunInfo;
use crate::os::access;
use crate::os::kernel_view::{without_answer, zombies_of};
use crate::os::process_info::{Stat, read_stat};
use crate::os::process_tree::{ProcessEvent, ProcessWatch};
use crate::os::signals::{Signals, wait_readable};
use crate::report::dump::json::{render_snapshot, render_snapshots};
use crate::report::dump::moved::render_moved;
use crate::report::dump::text::render_dump;
use crate::report::label::counted;
use crate::sampling::inspect::inspect_all;
use crate::sampling::session::{SEGMENT, SessionError, SessionOptions};
use crate::sampling::snapshot::{Snapshot, SnapshotFacts, take_snapshot};
use nix::sys::signal::Signal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a snapshot may take; then what was read so far is printed.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long names, locks and variables may take to read.
const INSPECTION: Duration = Duration::from_secs(10);
/// How long a read of a process's memory may take: more than a thread waits for a CPU on a busy
/// machine.
const ANSWER: Duration = Duration::from_secs(1);

pub(crate) fn run(plan: &DumpPlan) -> Result<ExitCode, Failure> {
    let mut snapshots = Vec::new();
    let mut comparison = Comparison::default();
    let mut denied = None;
    let mut begun = Instant::now();
    let signals = (plan.repeat > 1).then(interruptible).transpose()?;
    for number in 0..plan.repeat {
        let due = plan.every.saturating_mul(number);
        if let Some(signals) = &signals
            && is_interrupted(signals, begun + due)
        {
            messages::note(&format!(
                "interrupted after {}",
                counted(u64::from(number), "snapshot")
            ));
            break;
        }
        let dump = match take_one(plan) {
            // It is exiting: the kernel frees its memory before the process ends.
            Ok((_, Some(error))) if number > 0 => {
                messages::warning(&format!("no more snapshots: {error}"));
                comparison.all_ended();
                break;
            }
            Ok((dump, refused)) => {
                denied = refused;
                dump
            }
            Err(failure) if number == 0 => return Err(failure),
            // The snapshots taken before are printed.
            Err(failure) => {
                messages::warning(&format!("no more snapshots: {}", failure.text()));
                if check_target(plan.pid).is_err() {
                    comparison.all_ended();
                }
                break;
            }
        };
        match plan.json {
            true => snapshots.push(render_snapshot(&dump)),
            false if number == 0 => print(&render_dump(&dump))?,
            false => {}
        }
        comparison.add(dump);
        if number == 0 {
            // The first may take longer to prepare than the others: no interval is shorter than
            // requested.
            begun = Instant::now();
        }
    }
    match plan.json {
        true => {
            let text = render_snapshots(&snapshots, &comparison).map_err(Failure::new)?;
            print(&format!("{text}\n"))?;
        }
        false => print(&render_moved(&comparison))?,
    }
    match denied {
        Some(error) => Err(hints::session_failure(error)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Signals as a queue: an interrupt between two snapshots loses none of those taken.
fn interruptible() -> Result<Signals, Failure> {
    let mut signals = Signals::install().map_err(Failure::new)?;
    signals.listen().map_err(Failure::new)?;
    Ok(signals)
}

/// Waits until `due`, or for a signal that ends torchspy: whether one came.
fn is_interrupted(signals: &Signals, due: Instant) -> bool {
    loop {
        while let Some(received) = signals.next() {
            match received.signal {
                // No thread of the target is stopped between two snapshots.
                Signal::SIGTSTP => drop(signals.stop_self()),
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                _ => return true,
            }
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        wait_readable(signals, None, left);
    }
}

fn check_target(pid: i32) -> Result<(), Failure> {
    if u32::try_from(pid).is_ok_and(|pid| pid == std::process::id()) {
        return Err(Failure::usage(
            "torchspy cannot dump itself",
            "give the trainer's pid",
        ));
    }
    // A thread that execs takes over the tid of the first thread, which is a zombie until then:
    // asked before and after.
    let is_zombie = |stat: &Stat| matches!(stat.state, b'Z' | b'X');
    let has_ended = |stat: &Stat| {
        is_zombie(stat) && is_alone(pid) && read_stat(pid).is_ok_and(|again| is_zombie(&again))
    };
    match read_stat(pid) {
        Err(_) => Err(hints::session_failure(SessionError::NoSuchProcess(pid))),
        Ok(stat) if has_ended(&stat) => Err(Failure::message(format!(
            "process {pid} has ended: it is a zombie, and waits for its parent"
        ))
        .hint(format!("its parent is process {}", stat.parent_pid))),
        Ok(_) => Ok(()),
    }
}

/// Whether no thread of a process lives besides its first.
fn is_alone(pid: i32) -> bool {
    crate::os::threads::living_task(pid) == pid
}

fn print(text: &str) -> Result<(), Failure> {
    messages::data(|out| out.write_all(text.as_bytes()))
}

/// One snapshot, and the error where the kernel refused most of it.
fn take_one(plan: &DumpPlan) -> Result<(Dump, Option<SessionError>), Failure> {
    check_target(plan.pid)?;
    let run = RunInfo {
        native: plan.native,
        ..target::begin(plan.pid)
    };
    let pids = pids(plan);
    let silent = without_answer(&pids, ANSWER);
    if !silent.contains(&plan.pid) {
        free_threaded::refuse_process(plan.pid)?;
    }
    let mut dump = Dump {
        wall_ns: run.started_wall_ns,
        ..Dump::default()
    };
    let mut denied = None;
    if pids.iter().any(|pid| !silent.contains(pid)) {
        let may_stop = access::try_stop_own_child().is_ok();
        let mut options = options(plan, silent.clone());
        options.nonblocking |= !may_stop;
        match take_snapshot(&run, options, PATIENCE) {
            Ok(found) => {
                dump = analyzed(found, plan, &run);
                unreached(&mut dump, pids.iter().filter(|pid| !silent.contains(pid)));
                if !may_stop {
                    dump.missing.push(
                        "threads may not be stopped here (ptrace): of those that run, Python frames were read without a stop"
                            .to_owned(),
                    );
                }
            }
            Err(error @ SessionError::PermissionDenied { .. }) => {
                for &pid in pids.iter().filter(|pid| !silent.contains(pid)) {
                    dump.processes
                        .push(process_of(pid, "its memory may not be read"));
                }
                denied = Some(error);
            }
            Err(error) => return Err(hints::session_failure(error)),
        }
    }
    for pid in silent {
        dump.missing.push(format!(
            "process {pid}: its memory does not answer (a thread of it holds its mmap lock, or none gives it up): \
             names, states and what the kernel shows are all there is"
        ));
        dump.processes.push(process_of(
            pid,
            "only what the kernel shows: its memory does not answer",
        ));
    }
    if dump.processes.is_empty() {
        return Err(
            Failure::message(format!("process {} ended during the snapshot", plan.pid))
                .hint("torchspy record -- COMMAND follows a program to its end"),
        );
    }
    annotate(&mut dump);
    for dead in zombies_of(&pids) {
        dump.missing.push(format!(
            "process {} ({}) has ended: it is a zombie, for which its parent {} has not waited yet. If it was a rank, the \
             other ranks wait for it",
            dead.pid, dead.name, dead.parent
        ));
    }
    Ok((dump, denied))
}

/// The process, and with `--tree` all that descends from it.
fn pids(plan: &DumpPlan) -> Vec<i32> {
    let mut pids = vec![plan.pid];
    if plan.tree
        && let Ok(mut watch) = ProcessWatch::new(plan.pid)
    {
        for event in watch.poll() {
            if let ProcessEvent::Started { pid, .. } = event
                && !pids.contains(&pid)
            {
                pids.push(pid);
            }
        }
    }
    pids
}

/// The dump of a snapshot, with names, locks and variables.
fn analyzed(found: Snapshot, plan: &DumpPlan, run: &RunInfo) -> Dump {
    let mut dump = Dump {
        wall_ns: run.started_wall_ns,
        ..dump(&resolve_recording(&found.recording, plan.rules.set))
    };
    let Some(facts) = found.facts else {
        dump.missing.push(format!(
            "the snapshot did not end within {} s: what was read by then is shown",
            PATIENCE.as_secs()
        ));
        return dump;
    };
    dump.skew_ns = skew_ns(&facts);
    dump.wall_ns += facts.begun_ns.saturating_sub(run.started_ns);
    dump.missing.extend(replaced(&facts));
    let (inspected, left) = inspect_all(
        facts.processes,
        plan.locals.then_some(plan.redaction),
        INSPECTION,
    );
    attach(&mut dump, inspected, plan.locals);
    for pid in left {
        dump.missing.push(format!(
            "process {pid}: names of its threads, locks and variables: they were not read within {} s",
            INSPECTION.as_secs()
        ));
    }
    dump
}

/// Processes that replaced their programs during the snapshot.
fn replaced(facts: &SnapshotFacts) -> impl Iterator<Item = String> {
    let processes = facts.processes.iter().filter(|each| each.execs > 0);
    processes.map(|each| {
        format!(
            "process {} replaced its program (exec) at least {} during the snapshot: stacks may be of one program and names of another",
            each.pid,
            counted(u64::from(each.execs), "time"),
        )
    })
}

/// Adds those of `pids` that live and are missing in the snapshot, as the kernel shows them; and
/// the threads of processes of which no stack was read.
fn unreached<'p>(dump: &mut Dump, pids: impl Iterator<Item = &'p i32>) {
    for process in dump
        .processes
        .iter_mut()
        .filter(|each| each.threads.is_empty())
    {
        process.threads = process_of(process.pid, "").threads;
    }
    let known: Vec<i32> = dump.processes.iter().map(|process| process.pid).collect();
    for &pid in pids.filter(|pid| !known.contains(pid)) {
        let process = process_of(pid, "only what the kernel shows: it was not reached");
        if !process.threads.is_empty() {
            dump.processes.push(process);
        }
    }
}

/// Time between the first thread that was read and the last.
fn skew_ns(facts: &SnapshotFacts) -> Option<u64> {
    let threads = facts.processes.iter().flat_map(|process| &process.threads);
    let read = threads
        .map(|thread| thread.captured_ns)
        .filter(|&captured_ns| captured_ns != 0);
    Some(read.clone().max()?.saturating_sub(read.min()?))
}

fn options(plan: &DumpPlan, leave_out: Vec<i32>) -> SessionOptions {
    SessionOptions {
        rate_hz: 1.0,
        native: plan.native,
        nonblocking: plan.nonblocking,
        gil_only: false,
        threads: None,
        ranks: None,
        subprocesses: plan.tree,
        stop_any_child: true,
        max_stopped: f64::INFINITY,
        gpu: GpuOptions {
            choice: GpuChoice::None,
            library: None,
        },
        once: true,
        leave_out,
        redaction: plan.redaction,
        rules: plan.rules.set,
        segment: SEGMENT,
    }
}
