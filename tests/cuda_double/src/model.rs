//! The process's part of the node: streams as queues in virtual time.
//!
//! What is put into a stream has its start and end as soon as all before it have theirs. That is at
//! once, unless a collective waits for other ranks: then what is behind it stays pending, and is
//! resolved by whoever asks next.

use crate::call::{Error, INVALID, INVALID_DEVICE, Result, record, tid};
use crate::graphs::{Graph, Node as GraphNode};
use gpu_node::meeting::Bell;
use gpu_node::monotonic_ns;
use gpu_node::node::{DEVICES, Node, OPEN, Use};
use gpu_node::scenario::{Scenario, Wait};
use gpu_node::truth::{Kind, Log, Record};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock};
use std::time::Duration;

/// The node as this process has it.
pub(crate) struct Own {
    pub(crate) folder: PathBuf,
    pub(crate) scenario: Scenario,
    pub(crate) shared: Node,
    pub(crate) log: Log,
    /// Rings for arrivals at collectives.
    pub(crate) bell: Bell,
    /// Devices of the node by the process's numbers, as CUDA_VISIBLE_DEVICES says.
    pub(crate) visible: Vec<usize>,
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether the process was forked off one that used a device: the runtime works in none.
pub(crate) fn forked() -> bool {
    FORKED.load(Relaxed)
}

extern "C" fn in_child() {
    FORKED.store(true, Relaxed);
}

/// The node. A folder that cannot be used is a machine that does not work: the process ends with
/// the reason, since a test must not take it for a slow one.
pub(crate) fn node() -> &'static Own {
    static NODE: OnceLock<Own> = OnceLock::new();
    NODE.get_or_init(|| {
        open().unwrap_or_else(|reason| {
            let text = format!("simulated GPU: {reason}\n");
            // SAFETY: the text is valid for its length.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            std::process::abort()
        })
    })
}

fn open() -> std::result::Result<Own, String> {
    let folder = std::env::var_os(gpu_node::FOLDER).map(PathBuf::from);
    let folder = folder.ok_or_else(|| format!("{} is not set", gpu_node::FOLDER))?;
    let scenario = Scenario::read(&folder)?;
    if scenario.gpus.len() > DEVICES {
        return Err(format!("more than {DEVICES} GPUs"));
    }
    let told = |error: std::io::Error| format!("cannot use {}: {error}", folder.display());
    let shared = Node::open(&folder).map_err(told)?;
    let log = Log::create(&folder).map_err(told)?;
    let bell = Bell::open(&folder).map_err(told)?;
    // SAFETY: the handler stores an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    Ok(Own {
        visible: visible_gpus(&scenario, visible.as_deref()),
        folder,
        scenario,
        shared,
        log,
        bell,
    })
}

/// By number or by the begin of a UUID; the list ends at what is neither.
fn visible_gpus(scenario: &Scenario, listed: Option<&str>) -> Vec<usize> {
    let count = scenario.gpus.len();
    let Some(listed) = listed else {
        return (0..count).collect();
    };
    let of = |word: &str| match word.parse::<usize>() {
        Ok(number) => (number < count).then_some(number),
        Err(_) => scenario
            .gpus
            .iter()
            .position(|gpu| !word.is_empty() && gpu.uuid.starts_with(word)),
    };
    listed
        .split(',')
        .map_while(|word| of(word.trim()))
        .collect()
}

impl Own {
    /// The number of a name in the log; each thread looks it up once.
    pub(crate) fn name(&self, name: &str) -> u32 {
        thread_local! {
            static KNOWN: RefCell<HashMap<String, u32>> = RefCell::default();
        }
        let known = KNOWN.try_with(|known| known.borrow().get(name).copied());
        // Handlers of the process's exit call, too, when the thread's own map is gone.
        if let Ok(Some(number)) = known {
            return number;
        }
        let number = self.log.name(name);
        let known =
            |known: &RefCell<HashMap<_, _>>| known.borrow_mut().insert(name.to_owned(), number);
        KNOWN.try_with(known).ok();
        number
    }

    /// How long work of so many microseconds takes a device at a moment, ns.
    fn length_ns(&self, device: usize, us: f64, at_ns: u64) -> u64 {
        let number = self.visible[device];
        let throttle = self.scenario.gpus[number].throttle;
        let factor = self.shared.slowdown(number, throttle, at_ns);
        (us * self.scenario.slow * factor * 1000.0) as u64
    }
}

/// What a device does for a while.
#[derive(Clone)]
pub(crate) struct Work {
    /// The name's number.
    pub(crate) name: u32,
    pub(crate) us: f64,
    pub(crate) used: Use,
}

impl Work {
    /// Work whose cost the scenario may set by its name.
    pub(crate) fn new(name: &str, us: f64, used: Use) -> Self {
        let costs = node().scenario.kernels.iter();
        let set = costs.clone().find(|cost| name.contains(&cost.name));
        Self {
            name: node().name(name),
            us: set.map_or(us, |cost| cost.us),
            used,
        }
    }
}

/// A collective of several ranks.
pub(crate) trait Meeting: Send {
    /// The own device has come to it.
    fn arrive(&mut self, at_ns: u64);
    /// When it ended; `None` while a rank has not come.
    fn end_ns(&mut self) -> Option<u64>;
}

/// The time of an event's record; 0 while it is not known.
pub(crate) type Moment = Arc<AtomicU64>;

/// What a copy does to memory, in its turn in the stream.
pub(crate) type Effect = Box<dyn FnOnce() + Send>;

enum Op {
    Work {
        work: Work,
        effect: Option<Effect>,
        issued_ns: u64,
        tid: u32,
    },
    Await(Moment),
    Record {
        moment: Moment,
        issued_ns: u64,
    },
    Meet {
        meeting: Box<dyn Meeting>,
        name: u32,
        used: Use,
        issued_ns: u64,
        tid: u32,
        /// Where it stands in shared memory, and when it began.
        begun: Option<(u64, u64)>,
    },
    Call(HostFunction),
}

/// A function that a stream calls.
pub(crate) struct HostFunction {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) argument: usize,
}

pub(crate) struct Stream {
    pub(crate) device: usize,
    number: u32,
    pub(crate) priority: i32,
    /// The end of what is resolved.
    tail_ns: u64,
    pending: VecDeque<Op>,
    /// Ends of what may not have ended.
    running: VecDeque<u64>,
    /// The graph that it is captured into.
    pub(crate) capture: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Event {
    pub(crate) moment: Option<Moment>,
    pub(crate) capture: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) streams: HashMap<usize, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) graphs: HashMap<usize, Graph>,
    /// Streams that have something pending.
    waiting: Vec<usize>,
    next: usize,
}

/// Kernels and copies launched so far.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Acquire)
}

/// Notified when something is pending.
static PENDING: Condvar = Condvar::new();

pub(crate) fn model() -> MutexGuard<'static, Model> {
    static MODEL: OnceLock<Mutex<Model>> = OnceLock::new();
    let model = MODEL.get_or_init(Mutex::default);
    model.lock().unwrap_or_else(|error| error.into_inner())
}

thread_local! {
    static DEVICE: Cell<usize> = const { Cell::new(0) };
}

/// The thread's device.
pub(crate) fn current_device() -> usize {
    DEVICE.get()
}

pub(crate) fn set_device(device: usize) -> Result {
    if device >= node().visible.len() {
        return Err(INVALID_DEVICE);
    }
    DEVICE.set(device);
    crate::device::use_device(device);
    Ok(())
}

/// The key of a stream by its handle. 0, 1 and 2 are the default streams of the thread's device.
fn key(handle: usize) -> usize {
    match handle {
        0..=2 => 0x10 + current_device(),
        handle => handle,
    }
}

impl Model {
    /// A new handle of anything. It is no address, and no key of a default stream.
    pub(crate) fn handle(&mut self) -> usize {
        self.next += 1;
        0x5100_0000 + self.next * 0x40
    }

    pub(crate) fn new_stream(&mut self, device: usize, priority: i32) -> usize {
        let handle = self.handle();
        self.add_stream(handle, device, priority);
        handle
    }

    fn add_stream(&mut self, key: usize, device: usize, priority: i32) {
        let number = self.streams.len() as u32;
        let stream = Stream {
            device,
            number,
            priority,
            tail_ns: 0,
            pending: VecDeque::new(),
            running: VecDeque::new(),
            capture: None,
        };
        self.streams.insert(key, stream);
    }

    /// A stream by its handle.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<&mut Stream> {
        let key = key(handle);
        if key < 0x10 + DEVICES && !self.streams.contains_key(&key) {
            self.add_stream(key, key - 0x10, 0);
        }
        self.streams.get_mut(&key).ok_or(INVALID)
    }

    /// Gives times to all that can have them.
    fn resolve(&mut self) {
        loop {
            let mut moved = false;
            for at in (0..self.waiting.len()).rev() {
                let Some(stream) = self.streams.get_mut(&self.waiting[at]) else {
                    self.waiting.swap_remove(at);
                    continue;
                };
                moved |= stream.resolve();
                if stream.pending.is_empty() {
                    self.waiting.swap_remove(at);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn push(&mut self, handle: usize, op: Op) -> Result {
        let stream = self.stream(handle)?;
        let idle = stream.pending.is_empty();
        stream.pending.push_back(op);
        if idle {
            stream.resolve();
            if !stream.pending.is_empty() {
                self.waiting.push(key(handle));
                PENDING.notify_one();
            }
        }
        Ok(())
    }

    /// The end of all that was put into a stream; `None` while it is not known.
    pub(crate) fn end_of(&mut self, handle: usize) -> Result<Option<u64>> {
        self.resolve();
        let stream = self.stream(handle)?;
        Ok(stream.pending.is_empty().then_some(stream.tail_ns))
    }

    /// The same of all streams of a device.
    pub(crate) fn end_of_device(&mut self, device: usize) -> Option<u64> {
        self.resolve();
        let streams = self.streams.values();
        let mut ends = streams
            .filter(|stream| stream.device == device)
            .map(|stream| stream.pending.is_empty().then_some(stream.tail_ns));
        ends.try_fold(0, |last, end| Some(last.max(end?)))
    }

    /// The time of an event's last record; 0 for one that was never recorded.
    pub(crate) fn moment_of(&mut self, event: usize) -> Result<Option<u64>> {
        self.resolve();
        let event = self.events.get(&event).ok_or(INVALID)?;
        let time = event.moment.as_ref().map(|moment| moment.load(Acquire));
        Ok(match time {
            None => Some(0),
            Some(0) => None,
            Some(time) => Some(time),
        })
    }

    /// When a stream has room for one more.
    fn room(&mut self, handle: usize) -> Result<Option<u64>> {
        let depth = node().scenario.queue.max(1);
        self.resolve();
        let now = monotonic_ns();
        let stream = self.stream(handle)?;
        while stream.running.front().is_some_and(|&end| end <= now) {
            stream.running.pop_front();
        }
        let resolved = stream.running.len();
        if resolved + stream.pending.len() < depth {
            return Ok(Some(0));
        }
        // With nothing resolved in it, all of the queue waits for other ranks.
        let leaves = (resolved + stream.pending.len()) - depth;
        Ok(stream.running.get(leaves).copied())
    }

    pub(crate) fn record_event(&mut self, event: usize, handle: usize) -> Result {
        let capture = self.stream(handle)?.capture;
        let moment = Moment::default();
        let event = self.events.get_mut(&event).ok_or(INVALID)?;
        event.capture = capture;
        if capture.is_none() {
            event.moment = Some(Arc::clone(&moment));
            let issued_ns = monotonic_ns();
            self.push(handle, Op::Record { moment, issued_ns })?;
        }
        Ok(())
    }

    pub(crate) fn await_event(&mut self, handle: usize, event: usize) -> Result {
        let event = self.events.get(&event).ok_or(INVALID)?;
        if let Some(capture) = event.capture {
            self.stream(handle)?.capture = Some(capture);
            return Ok(());
        }
        let Some(moment) = event.moment.clone() else {
            return Ok(());
        };
        self.push(handle, Op::Await(moment))
    }

    pub(crate) fn call_host(&mut self, handle: usize, function: HostFunction) -> Result {
        self.push(handle, Op::Call(function))
    }
}

impl Stream {
    /// Whether all in it has its times.
    pub(crate) fn is_resolved(&self) -> bool {
        self.pending.is_empty()
    }

    /// Gives times to what is pending, as far as it can; whether it could.
    fn resolve(&mut self) -> bool {
        let before = self.pending.len();
        while let Some(op) = self.pending.front_mut() {
            let node = node();
            let latency_ns = (node.scenario.latency_us * 1000.0) as u64;
            let log = |name, tid, start, end| {
                node.log.put(Record {
                    start,
                    end,
                    name,
                    tid,
                    stream: self.number,
                    device: node.visible[self.device] as u8,
                    kind: Kind::Work as u8,
                    pad: 0,
                });
            };
            match op {
                Op::Work {
                    work,
                    effect,
                    issued_ns,
                    tid,
                } => {
                    if let Some(effect) = effect.take() {
                        effect();
                    }
                    let start = self.tail_ns.max(*issued_ns + latency_ns);
                    let end = start + node.length_ns(self.device, work.us, start);
                    log(work.name, *tid, start, end);
                    node.shared
                        .put(node.visible[self.device], start, end, work.used);
                    self.tail_ns = end;
                    self.running.push_back(end);
                }
                Op::Await(moment) => match moment.load(Acquire) {
                    0 => break,
                    time => self.tail_ns = self.tail_ns.max(time),
                },
                Op::Record { moment, issued_ns } => {
                    moment.store(self.tail_ns.max(*issued_ns), Release);
                }
                Op::Meet {
                    meeting,
                    name,
                    used,
                    issued_ns,
                    tid,
                    begun,
                } => {
                    let (place, start) = *begun.get_or_insert_with(|| {
                        let start = self.tail_ns.max(*issued_ns + latency_ns);
                        meeting.arrive(start);
                        let device = node.visible[self.device];
                        (node.shared.put(device, start, OPEN, *used), start)
                    });
                    let Some(end) = meeting.end_ns() else { break };
                    log(*name, *tid, start, end);
                    node.shared.end(node.visible[self.device], place, end);
                    self.tail_ns = end;
                    self.running.push_back(end);
                }
                Op::Call(function) => {
                    crate::streams::call_at(
                        self.tail_ns,
                        HostFunction {
                            function: function.function,
                            argument: function.argument,
                        },
                    );
                }
            }
            self.pending.pop_front();
        }
        self.pending.len() < before
    }
}

/// Puts work into a stream, or into the graph that it is captured into. Waits while the queue is
/// full, as a launch does.
pub(crate) fn issue(name: &'static str, handle: usize, work: Work) -> Result {
    issue_with(name, handle, work, None)
}

/// The same, of work that changes memory.
pub(crate) fn issue_with(
    name: &'static str,
    handle: usize,
    work: Work,
    effect: Option<Effect>,
) -> Result {
    {
        let mut model = model();
        LAUNCHES.fetch_add(1, AcqRel);
        if let Some(capture) = model.stream(handle)?.capture {
            let graph = model.graphs.get_mut(&capture).ok_or(INVALID)?;
            graph.nodes.push(GraphNode { work });
            if let Some(effect) = effect {
                effect();
            }
            return Ok(());
        }
    }
    wait(name, |model| model.room(handle))?;
    let issued_ns = monotonic_ns();
    let tid = tid();
    model().push(
        handle,
        Op::Work {
            work,
            effect,
            issued_ns,
            tid,
        },
    )
}

/// Puts a collective into a stream.
pub(crate) fn issue_meeting(
    name: &'static str,
    handle: usize,
    called: u32,
    used: Use,
    meeting: Box<dyn Meeting>,
) -> Result {
    static RESOLVER: Once = Once::new();
    RESOLVER.call_once(|| {
        std::thread::spawn(resolve_pending);
    });
    wait(name, |model| model.room(handle))?;
    let op = Op::Meet {
        meeting,
        name: called,
        used,
        issued_ns: monotonic_ns(),
        tid: tid(),
        begun: None,
    };
    model().push(handle, op)
}

/// Gives times to what is pending as soon as other ranks have come, also while the program asks for
/// nothing: they wait for what is behind it.
fn resolve_pending() {
    loop {
        let bell = &node().bell;
        let rung = bell.rung();
        let mut model = model();
        model.resolve();
        if model.waiting.is_empty() {
            drop(PENDING.wait(model));
        } else {
            drop(model);
            bell.wait(rung, Duration::from_millis(10));
        }
    }
}

/// Waits for a moment, as the node's flags say: spinning, yielding or blocking. While the moment
/// is not known, it is asked for again and again.
pub(crate) fn wait(
    name: &'static str,
    moment: impl Fn(&mut Model) -> Result<Option<u64>>,
) -> Result {
    let begun = monotonic_ns();
    let mut waited = false;
    loop {
        let now = monotonic_ns();
        // In a statement of its own: the lock is held for no longer.
        let until = moment(&mut model())?;
        match until {
            Some(until) if until <= now => break,
            Some(until) => pause(until - now),
            None => pause(20_000),
        }
        waited = true;
    }
    if waited {
        record(Kind::Wait, name, begun);
    }
    Ok(())
}

fn pause(ns: u64) {
    let until = monotonic_ns() + ns;
    match node().scenario.wait {
        Wait::Block => block(ns),
        Wait::Yield => {
            while monotonic_ns() < until {
                std::thread::yield_now();
            }
        }
        Wait::Spin => {
            while monotonic_ns() < until {
                std::hint::spin_loop();
            }
        }
    }
}

/// Waits in `ppoll`, as the driver waits for a device's interrupt, and not in a function that is
/// known to sleep.
fn block(ns: u64) {
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: no descriptors, and a local time. Ended early by a signal, the caller asks again.
    unsafe { libc::ppoll(std::ptr::null_mut(), 0, &raw const time, std::ptr::null()) };
}

/// Keeps the thread on a CPU for what a call costs it.
pub(crate) fn spend(us: f64) {
    let until = monotonic_ns() + (us * 1000.0) as u64;
    while us > 0.0 && monotonic_ns() < until {
        std::hint::spin_loop();
    }
}

/// An error for a call on a stream that is captured, where it would wait.
pub(crate) fn not_captured(handle: usize) -> Result {
    match model().stream(handle)?.capture {
        // cudaErrorStreamCaptureUnsupported
        Some(_) => Err(Error(900)),
        None => Ok(()),
    }
}
