//! Reads what the objects of sampled processes hold, from time to time, on a thread of its own:
//! nothing is stopped, and nobody waits for it.

use super::control::Control;
use crate::model::containers::KeptContainers;
use crate::model::held::{Held, Holding, KeptHeld};
use crate::model::ids::ProcessId;
use crate::model::progress::facts;
use crate::os::clock::{monotonic_ns, thread_cpu_ns};
use crate::os::priority::run_behind;
use crate::os::vm_read::ProcessMemory;
use crate::python::discover::Interpreter;
use crate::python::threads::read_threads;
use crate::torch::probe::held::{Containers, read_containers, read_held};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Shortest time between two rounds.
const PERIOD: Duration = Duration::from_secs(4);
/// CPU time of a round, as a part of the time until the next, as its divisor: a percent of a CPU.
const COST: u32 = 100;
/// The first rounds that cost more than that, and the longest time after them: a short recording
/// has some, too.
const FIRST: u32 = 4;
const FIRST_PERIOD: Duration = Duration::from_secs(6);
/// Rounds are further apart the longer a recording lasts: by this part of it, as its divisor.
const ELAPSED: u32 = 10;
/// How long the objects of one process may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of processes.
const MAX_PROCESSES: usize = 64;
/// How far the thread's priority is below the tracer's.
const NICE: i32 = 5;

/// A process whose interpreter is known, or that has ended.
pub(super) enum Watch {
    Begin(ProcessId, i32, Arc<Interpreter>),
    End(ProcessId),
}

/// A condition of a process.
pub(super) struct HeldFact {
    pub(super) process: ProcessId,
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// The worker's ends of the channels.
pub(super) struct HeldLink {
    pub(super) watch: Sender<Watch>,
    pub(super) facts: Receiver<HeldFact>,
}

struct Watched {
    pid: i32,
    interpreter: Arc<Interpreter>,
    containers: Containers,
    /// Sums of what modules held when that was last recorded.
    held: Option<Sums>,
}

/// Bytes of parameters, optimizer state and buffers together, and of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    lasting: u64,
    gradients: u64,
}

/// Starts the thread. It ends with its link; where the memory of a process does not answer, with
/// torchspy.
pub(super) fn start(control: Arc<Control>, reads: bool) -> HeldLink {
    let (watch, watches) = unbounded();
    let (sender, facts) = unbounded();
    if reads {
        let work = move || run(&watches, &sender, &control);
        // Without the thread the recording lacks what it would have read.
        let _ = Builder::new().name("torchspy-held".to_owned()).spawn(work);
    }
    HeldLink { watch, facts }
}

fn run(watches: &Receiver<Watch>, found: &Sender<HeldFact>, control: &Control) {
    run_behind(NICE);
    let begun = Instant::now();
    let mut all: BTreeMap<ProcessId, Watched> = BTreeMap::new();
    let mut next = begun + PERIOD;
    let mut costly = 0;
    let mut with_modules = Duration::ZERO;
    loop {
        match watches.recv_deadline(next) {
            Ok(Watch::Begin(process, pid, interpreter)) => {
                if all.len() < MAX_PROCESSES {
                    let containers = Containers::default();
                    let watched = Watched {
                        pid,
                        interpreter,
                        containers,
                        held: None,
                    };
                    all.insert(process, watched);
                }
                continue;
            }
            Ok(Watch::End(process)) => {
                all.remove(&process);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let spent_ns = thread_cpu_ns();
        let elapsed = begun.elapsed();
        // Modules and their optimizers change less than containers, and cost more.
        let reads_modules = elapsed >= with_modules;
        if reads_modules {
            with_modules = elapsed * 3 / 2;
        }
        if !control.pause_requested() {
            for (&process, watched) in &mut all {
                for (name, value) in watched.read(reads_modules) {
                    let fact = HeldFact {
                        process,
                        name,
                        value,
                    };
                    if found.send(fact).is_err() {
                        return;
                    }
                }
            }
        }
        let spent = Duration::from_nanos(thread_cpu_ns().saturating_sub(spent_ns));
        let mut pause = spent * COST;
        if pause > PERIOD && costly < FIRST {
            costly += 1;
            pause = pause.min(FIRST_PERIOD);
        }
        next = Instant::now() + pause.max(elapsed / ELAPSED).max(PERIOD);
    }
}

impl Watched {
    /// Conditions that are new.
    fn read(&mut self, reads_modules: bool) -> Vec<(&'static str, String)> {
        let memory = ProcessMemory::new(self.pid);
        let Ok(threads) = read_threads(&self.interpreter, &memory) else {
            return Vec::new();
        };
        // The main thread's variables name what those of others have, too.
        let mut states: Vec<_> = threads.iter().collect();
        states.sort_by_key(|thread| thread.native_thread_id != u64::try_from(self.pid).ok());
        let states: Vec<u64> = states.iter().map(|thread| thread.state_address).collect();
        let until = Instant::now() + PATIENCE;
        let (interpreter, known) = (&self.interpreter, &self.containers);
        let reading = read_containers(interpreter, &states, &memory, known, until);
        self.containers.add(reading, monotonic_ns());
        let mut new = Vec::new();
        let growing = self.containers.growing();
        if !growing.is_empty() {
            let text = KeptContainers::text(growing);
            new.push((facts::GROWING_CONTAINERS, text));
        }
        if reads_modules {
            let until = Instant::now() + PATIENCE;
            let held = read_held(&self.interpreter, &states, &memory, until);
            let text = self.take_held(held.as_ref());
            new.extend(text.map(|text| (facts::HELD, text)));
        }
        new
    }

    /// What is recorded of a reading: the first, and those with more gradients or other sums.
    fn take_held(&mut self, held: Option<&Held>) -> Option<String> {
        let Some(held) = held else {
            let is_first = self.held.is_none();
            self.held = Some(self.held.unwrap_or_default());
            let why = "no variable of its frames leads to a module or an optimizer";
            return is_first.then(|| KeptHeld::text(monotonic_ns(), Err(why)));
        };
        let mut sums = Sums::default();
        for part in held.totals() {
            match part.holding {
                Holding::Gradients => sums.gradients += part.bytes,
                _ => sums.lasting += part.bytes,
            }
        }
        let is_news =
            |known: Sums| known.lasting != sums.lasting || sums.gradients > known.gradients;
        if !self.held.is_none_or(is_news) {
            return None;
        }
        self.held = Some(sums);
        Some(KeptHeld::text(monotonic_ns(), Ok(held)))
    }
}
