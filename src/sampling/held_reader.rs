//! Reads what the objects of sampled processes hold, from time to time, on a thread of its own:
//! nothing is stopped, and nobody waits for it.

use super::control::Control;
use crate::model::containers::KeptContainers;
use crate::model::ids::ProcessId;
use crate::model::progress::facts;
use crate::os::clock::monotonic_ns;
use crate::os::priority::run_behind;
use crate::os::vm_read::ProcessMemory;
use crate::python::discover::Interpreter;
use crate::python::threads::read_threads;
use crate::torch::probe::held::{Containers, read_containers};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Shortest time between two rounds.
const PERIOD: Duration = Duration::from_secs(4);
/// A round is at most this part of the time before it, as its divisor: a half percent of a CPU.
const COST: u32 = 200;
/// Rounds are further apart the longer a recording lasts: by this part of it, as its divisor.
const ELAPSED: u32 = 10;
/// How long the objects of one process may take.
const PATIENCE: Duration = Duration::from_millis(500);
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
    loop {
        match watches.recv_deadline(next) {
            Ok(Watch::Begin(process, pid, interpreter)) => {
                if all.len() < MAX_PROCESSES {
                    let containers = Containers::default();
                    let watched = Watched {
                        pid,
                        interpreter,
                        containers,
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
        let round = Instant::now();
        if !control.pause_requested() {
            for (&process, watched) in &mut all {
                if let Some(value) = watched.read()
                    && found
                        .send(HeldFact {
                            process,
                            name: facts::GROWING_CONTAINERS,
                            value,
                        })
                        .is_err()
                {
                    return;
                }
            }
        }
        let pause = (round.elapsed() * COST).max(begun.elapsed() / ELAPSED);
        next = Instant::now() + pause.max(PERIOD);
    }
}

impl Watched {
    fn read(&mut self) -> Option<String> {
        let memory = ProcessMemory::new(self.pid);
        let threads = read_threads(&self.interpreter, &memory).ok()?;
        // The main thread's variables name what those of others have, too.
        let mut states: Vec<_> = threads.iter().collect();
        states.sort_by_key(|thread| thread.native_thread_id != u64::try_from(self.pid).ok());
        let states: Vec<u64> = states.iter().map(|thread| thread.state_address).collect();
        let until = Instant::now() + PATIENCE;
        let reading = read_containers(&self.interpreter, &states, &memory, &self.containers, until);
        self.containers.add(reading, monotonic_ns());
        let growing = self.containers.growing();
        (!growing.is_empty()).then(|| KeptContainers::text(growing))
    }
}
