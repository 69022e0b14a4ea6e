//! Takes one snapshot of processes of this machine, as a dump.

use super::dump_kernel::{annotate, process_of};
use super::dump_plan::LookPlan;
use super::failure::Failure;
use super::nccl::ask_nccl;
use super::outputs::resolve_recording;
use super::{hints, target};
use crate::analysis::dump::attach::attach;
use crate::analysis::dump::dump;
use crate::gpu::collector::GpuOptions;
use crate::gpu::select::GpuChoice;
use crate::model::dump::{Dump, DumpedProcess};
use crate::model::profile::Role;
use crate::model::run::RunInfo;
use crate::os::access;
use crate::os::kernel_view::{without_answer, zombies_of};
use crate::os::own_thread::ask;
use crate::os::process_info::{Stat, read_stat};
use crate::os::process_tree::{ProcessEvent, ProcessWatch};
use crate::report::label::counted;
use crate::sampling::inspect::inspect_all;
use crate::sampling::session::{Engine, IdleThreads, SEGMENT, SessionError, SessionOptions};
use crate::sampling::snapshot::{Snapshot, SnapshotFacts, take_snapshot};
use std::time::Duration;

/// How long a snapshot may take; then what was read so far is printed.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long names, locks and variables may take to read.
const INSPECTION: Duration = Duration::from_secs(10);
/// How long a read of a process's memory may take: more than a thread waits for a CPU on a busy
/// machine.
const ANSWER: Duration = Duration::from_secs(1);

/// An error where the process cannot be dumped: it has ended, or is torchspy itself.
pub(super) fn check_target(pid: i32) -> Result<(), Failure> {
    if u32::try_from(pid).is_ok_and(|pid| pid == std::process::id()) {
        return Err(Failure::usage(
            "torchspy cannot dump itself",
            "give the trainer's pid",
        ));
    }
    // A thread that execs takes over the tid of the first thread, which is a zombie until then:
    // asked before and after.
    let has_ended = |stat: &Stat| {
        stat.is_zombie() && is_alone(pid) && read_stat(pid).is_ok_and(|again| again.is_zombie())
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

/// One snapshot, and the error where the kernel refused most of it.
pub(super) fn take_one(plan: &LookPlan) -> Result<(Dump, Option<SessionError>), Failure> {
    let (roots, refused) = roots(plan)?;
    let Some(&root) = roots.first() else {
        return Err(Failure::message("no process was given"));
    };
    let run = RunInfo {
        native: plan.native,
        ..target::begin(root)
    };
    let pids = pids(plan, &roots);
    let silent = without_answer(&pids, ANSWER);
    let mut dump = Dump {
        wall_ns: run.started_wall_ns,
        ..Dump::default()
    };
    let mut denied = None;
    if pids.iter().any(|pid| !silent.contains(pid)) {
        let may_stop = access::try_stop_own_child().is_ok();
        let mut options = options(plan, &roots, silent.clone());
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
            Failure::message(format!("process {root} ended during the snapshot"))
                .hint("torchspy record -- COMMAND follows a program to its end"),
        );
    }
    dump.missing.extend(refused);
    if roots.len() > 1 {
        trainers_as_asked(&mut dump, &roots);
    }
    annotate(&mut dump);
    if plan.ras {
        dump.nccl_ras = ask_nccl(&dump);
    }
    for dead in zombies_of(&pids) {
        dump.missing.push(format!(
            "process {} ({}) has ended: it is a zombie, for which its parent {} has not waited yet. If it was a rank, the \
             other ranks wait for it",
            dead.pid, dead.name, dead.parent
        ));
    }
    Ok((dump, denied))
}

/// The processes to begin with, and why others that were asked for are not among them.
fn roots(plan: &LookPlan) -> Result<(Vec<i32>, Vec<String>), Failure> {
    if let [only] = plan.pids[..] {
        check_target(only)?;
        return Ok((vec![only], Vec::new()));
    }
    let (mut roots, mut refused, mut first) = (Vec::new(), Vec::new(), None);
    for &pid in &plan.pids {
        // The snapshot reads the first of them at its start, and fails if it may not.
        let may_read = || match ask(pid, move || access::try_read_memory(pid)) {
            Ok(answer) => match answer.answer() {
                Some(Err(error)) => {
                    let detail = error.to_string();
                    let error = SessionError::PermissionDenied { pid, detail };
                    Err(hints::session_failure(error))
                }
                // It may answer later.
                Some(Ok(_)) | None => Ok(()),
            },
            Err(error) => Err(Failure::new(error)),
        };
        match check_target(pid).and_then(|()| may_read()) {
            Ok(()) => roots.push(pid),
            Err(failure) => {
                refused.push(failure.text());
                first = first.or(Some(failure));
            }
        }
    }
    match (roots.is_empty(), first) {
        (true, Some(failure)) => Err(failure),
        _ => Ok((roots, refused)),
    }
}

/// Processes that the user names are trainers where nothing says otherwise, as the only one is that
/// is named alone.
fn trainers_as_asked(dump: &mut Dump, roots: &[i32]) {
    for process in &mut dump.processes {
        if roots.contains(&process.pid) && process.role == Role::Other && !process.python.is_empty()
        {
            process.role = Role::Trainer {
                rank: None,
                world_size: None,
                local_rank: None,
            };
        }
    }
}

/// The processes, and with `--tree` all that descends from them.
fn pids(plan: &LookPlan, roots: &[i32]) -> Vec<i32> {
    let mut pids = roots.to_vec();
    if plan.tree
        && let Some((&root, more)) = roots.split_first()
        && let Ok(mut watch) = ProcessWatch::new(root)
    {
        for &root in more {
            // It has ended in the meantime.
            let _ = watch.add_root(root);
        }
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
fn analyzed(found: Snapshot, plan: &LookPlan, run: &RunInfo) -> Dump {
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
    let memory_of = match plan.memory {
        true => trainers_of_memory(&mut dump),
        false => Vec::new(),
    };
    let (inspected, left) = inspect_all(
        facts.processes,
        plan.locals.then_some(plan.redaction),
        memory_of,
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

/// The processes whose modules are read. DataLoader workers have those of their trainer, since they
/// are its forks; a launcher has none.
fn trainers_of_memory(dump: &mut Dump) -> Vec<i32> {
    dump.memory = Some(Vec::new());
    let has_own = |process: &&DumpedProcess| {
        let is_helper = matches!(process.role, Role::DataLoaderWorker { .. } | Role::Launcher);
        !process.python.is_empty() && !is_helper
    };
    let own = dump.processes.iter().filter(has_own);
    own.map(|process| process.pid).collect()
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

fn options(plan: &LookPlan, roots: &[i32], leave_out: Vec<i32>) -> SessionOptions {
    SessionOptions {
        rate_hz: 1.0,
        native: plan.native,
        nonblocking: plan.nonblocking,
        engine: Engine::Ptrace,
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
        more_roots: roots.iter().skip(1).copied().collect(),
        redaction: plan.redaction,
        rules: plan.rules.set,
        segment: SEGMENT,
        idle_threads: IdleThreads::Close,
    }
}
