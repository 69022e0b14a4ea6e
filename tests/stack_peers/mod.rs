//! What torchspy recorded of a process that is stopped, frame by frame against gdb's native and
//! pystack's Python stacks.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses its part"
)]

mod inspected;

pub use inspected::{Inspected, InspectedFrame, InspectedStack};

use crate::faults::wait_until;
pub use crate::installed::peer;

use super::native_live::{GdbStack, LiveMemory, LiveOpener, gdb_stacks_below};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use torchspy::native::loaded::LoadedModules;
use torchspy::native::modules::ModuleStore;
use torchspy::os::maps::parse_maps;

/// The function that evaluates Python frames, in all versions.
const EVAL: &str = "_PyEval_EvalFrameDefault";

/// A Python frame as pystack has it: function, file, line.
pub type PythonFrame = (String, String, u32);

/// What others say of the threads of one process, by tid.
pub struct Peers {
    gdb: Option<BTreeMap<i32, Vec<GdbFrame>>>,
    pystack: Option<BTreeMap<i32, Vec<PythonFrame>>>,
}

/// A native frame as gdb has it.
#[derive(Clone, Debug)]
struct GdbFrame {
    /// Module's file name and the address in it; `None` in memory without a file.
    place: Option<(String, u64)>,
    name: String,
}

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    pub native_stacks: usize,
    /// Stacks with code that is in no file, a JIT compiler's, from which gdb finds no way out.
    pub beyond_gdb: usize,
    pub native_frames: usize,
    pub native_names: usize,
    pub python_stacks: usize,
    pub python_frames: usize,
}

impl Peers {
    /// Asks gdb and pystack about a process, which is stopped below `root`; what is not installed
    /// is skipped, and said so.
    pub fn ask(pid: i32, root: &Path) -> Self {
        Self {
            pystack: pystack(pid),
            ..Self::ask_gdb(pid, root)
        }
    }

    /// Asks gdb alone.
    pub fn ask_gdb(pid: i32, root: &Path) -> Self {
        let modules = modules_of(pid);
        let gdb = gdb_stacks_below(pid, root).map(|threads| {
            threads
                .into_iter()
                .map(|(tid, stack)| (tid, placed(&modules, stack)))
                .collect()
        });
        Self { gdb, pystack: None }
    }

    /// Compares every stack that torchspy has of this process's threads; panics where one differs.
    ///
    /// Stacks of a Python thread without Python frames, recorded before the interpreter had been
    /// found, are compared as native ones. Threads whose stack has code without unwind information,
    /// which gdb cannot cross, are compared by their Python frames alone.
    pub fn compare(&self, pid: i32, recorded: &Inspected) -> Compared {
        let mut compared = Compared::default();
        let stacks = recorded.stacks_of(pid);
        assert!(!stacks.is_empty(), "nothing was recorded of {pid}");
        for (tid, stack) in stacks {
            if let Some(gdb) = self.gdb.as_ref().map(|threads| threads.get(&tid)) {
                let gdb = gdb.unwrap_or_else(|| panic!("gdb knows no thread {tid}"));
                // What a guess skipped is only known afterwards; the same thread is read again with
                // its registers.
                let is_placed = gdb.iter().all(|frame| frame.place.is_some());
                compared.beyond_gdb += usize::from(!is_placed);
                if !stack.guessed && is_placed {
                    compare_native(tid, stack, gdb, &mut compared);
                }
            }
            let python: Vec<PythonFrame> = stack.python().map(normal_python).collect();
            let Some(pystack) = self.pystack.as_ref().filter(|_| !python.is_empty()) else {
                continue;
            };
            let theirs = pystack
                .get(&tid)
                .unwrap_or_else(|| panic!("pystack knows no thread {tid}: {python:#?}"));
            assert_eq!(&python, theirs, "thread {tid}, against pystack");
            compared.python_stacks += 1;
            compared.python_frames += python.len();
        }
        compared
    }

    /// Threads that pystack shows Python frames of.
    pub fn python_threads(&self) -> usize {
        let threads = self.pystack.iter().flat_map(BTreeMap::values);
        threads.filter(|frames| !frames.is_empty()).count()
    }

    pub fn has_gdb(&self) -> bool {
        self.gdb.is_some()
    }

    pub fn has_pystack(&self) -> bool {
        self.pystack.is_some()
    }
}

fn modules_of(pid: i32) -> LoadedModules {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    modules.refresh(&parse_maps(&maps), &LiveOpener(pid), &LiveMemory(pid));
    modules
}

/// gdb's frames, root first, at addresses of files.
fn placed(modules: &LoadedModules, stack: GdbStack) -> Vec<GdbFrame> {
    let place = |pc: u64| {
        // A return address may be the first byte after its function; gdb has frames at 0, too.
        let before = || modules.find(pc.checked_sub(1)?);
        let loaded = modules.find(pc).or_else(before)?;
        let path = loaded.module.info.path.as_str();
        let file = path.rsplit('/').next().unwrap_or(path).to_owned();
        (!path.starts_with("[anonymous")).then_some((file, pc.wrapping_sub(loaded.bias)))
    };
    let frames = stack.into_iter().rev();
    frames
        .map(|(pc, name)| GdbFrame {
            place: place(pc),
            name,
        })
        .collect()
}

/// Walks both stacks from the root: a native frame must be the same, a run of Python frames must
/// stand where gdb has an eval.
fn compare_native(tid: i32, stack: &InspectedStack, gdb: &[GdbFrame], compared: &mut Compared) {
    let show = || format!("thread {tid}\ntorchspy: {stack:#?}\ngdb: {gdb:#?}");
    let mut ours = stack.frames.iter().peekable();
    let mut after_eval = false;
    for theirs in gdb {
        // A stripped interpreter's frames have no names for gdb.
        let is_eval = theirs.name == EVAL
            || theirs.name == "??" && matches!(ours.peek(), Some(InspectedFrame::Python { .. }));
        match ours.peek() {
            Some(InspectedFrame::Python { .. }) => {
                assert!(is_eval, "{theirs:?} ran Python frames? {}", show());
                while matches!(ours.peek(), Some(InspectedFrame::Python { .. })) {
                    ours.next();
                }
            }
            Some(InspectedFrame::Native {
                file,
                address,
                name,
            }) => {
                // Two evals in a row give one run.
                if is_eval && after_eval {
                    continue;
                }
                let (their_file, their_address) = theirs.place.as_ref().unwrap();
                assert_eq!(
                    (file, address),
                    (their_file, their_address),
                    "{name:?}, {}: {}",
                    theirs.name,
                    show()
                );
                if let Some(name) = name
                    && theirs.name != "??"
                    // A name that gdb's demangler gave up on.
                    && !theirs.name.starts_with("_Z")
                {
                    let (mine, others) = (normal_native(name), normal_native(&theirs.name));
                    assert!(is_alias(&mine, &others), "{mine} or {others}? {}", show());
                    compared.native_names += 1;
                }
                compared.native_frames += 1;
                ours.next();
            }
            Some(InspectedFrame::Partial(reason)) => panic!("{reason}: {}", show()),
            None => panic!("gdb has more frames: {}", show()),
        }
        after_eval = is_eval;
    }
    assert!(ours.next().is_none(), "gdb has fewer frames: {}", show());
    compared.native_stacks += 1;
}

/// What of a native name two tools must agree on: demanglers differ in how they write arguments and
/// templates, one address may have several names that differ in leading underscores, and PLT stubs
/// and versions are marked or not.
fn normal_native(name: &str) -> String {
    let name = name.split(['(', '<', '@', '[']).next().unwrap_or(name);
    name.trim_start_matches('_').trim_end().to_owned()
}

/// gdb may know a name that only debug information has, such as `__libc_start_main_impl` and
/// `__GI___clock_nanosleep`.
fn is_alias(mine: &str, others: &str) -> bool {
    others.contains(mine) || mine.contains(others)
}

/// pystack has a code object's plain name where torchspy has the qualified one (3.11 on).
fn normal_python(frame: PythonFrame) -> PythonFrame {
    let (name, file, line) = frame;
    let plain = name.rsplit('.').next().unwrap_or(&name).to_owned();
    (plain, file, line)
}

/// pystack's Python stacks, root first, by tid; `None` (with the reason printed) where it is not
/// installed.
fn pystack(pid: i32) -> Option<BTreeMap<i32, Vec<PythonFrame>>> {
    let pystack = peer("pystack")?;
    let output = Command::new(pystack)
        .args(["remote", "--no-color", "--no-block", &pid.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "pystack: {output:?}");
    let mut threads: BTreeMap<i32, Vec<PythonFrame>> = BTreeMap::new();
    let mut tid = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if let Some(rest) = line.strip_prefix("Traceback for thread ") {
            tid = rest.split(' ').next().unwrap().parse().unwrap();
            threads.entry(tid).or_default();
        } else if let Some(rest) = line.trim_start().strip_prefix("(Python) File \"") {
            let (file, rest) = rest.split_once("\", line ").unwrap();
            let (number, name) = rest.split_once(", in ").unwrap();
            let frame = (name.to_owned(), file.to_owned(), number.parse().unwrap());
            threads.entry(tid).or_default().push(frame);
        }
    }
    Some(threads)
}

/// Waits until no thread of a process runs: all are asleep, or stopped, and have been for a while.
/// One that waits for Python's lock sleeps, too, for 5 ms at most.
pub fn wait_until_still(pid: i32) {
    let mut before = Vec::new();
    wait_until("it stands still", || {
        let read = |task: &Path, name: &str| std::fs::read_to_string(task.join(name));
        let threads: Vec<(char, String)> = std::fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let stat = read(&entry.path(), "stat").ok()?;
                let state = stat.rsplit_once(") ")?.1.chars().next()?;
                // How often it was on a CPU.
                Some((state, read(&entry.path(), "schedstat").unwrap_or_default()))
            })
            .collect();
        let is_still = threads == before && threads.iter().all(|(state, _)| "ST".contains(*state));
        before = threads;
        std::thread::sleep(Duration::from_millis(50));
        is_still
    });
}
