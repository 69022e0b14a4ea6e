//! Turns copies of memory into recorded samples: unwinding, code objects, merging, interning;
//! writes a segment every second.

mod code_rules;
mod compilation;
mod nn_modules;
mod processes;
mod progress;
mod regions;
mod segments;
mod stacks;
mod tracks;

use super::control::Control;
use super::fallback::{FallbackLink, Order};
use super::held_reader::{HeldLink, Watch};
use super::image::ProcessImage;
use super::keeper::KeeperEvent;
use super::raw::{Message, RawSample};
use super::session::{IdleThreads, SessionOptions};
use super::symbol_loader::SymbolLoader;
use crate::gpu::feed::TrackFeed;
use crate::model::frame::{Frame, Partial};
use crate::model::ids::{CodeId, ModuleId, ProcessId, StackId, ThreadId};
use crate::model::sample::Sample;
use crate::model::segment::Segment;
use crate::model::tables::Tables;
use crate::native::modules::ModuleStore;
use crate::native::unwind::NativeFrame;
use crate::os::clock::monotonic_ns;
use crate::os::host::CpuGroups;
use crate::torch::rank_choice::RankChoice;
use code_rules::CodeRules;
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use nn_modules::NnModuleCalls;
use progress::Progress;
use regions::Regions;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Number of stacks above which stacks that no thread refers to are dropped: 2 MB. (A trainer with
/// 160 threads makes some 60,000 in three quarters of an hour; a dropped stack that recurs is
/// interned again.)
const MAX_STACKS: usize = 25_000;
/// The same where idle threads are followed loosely: 0.5 MB.
const LOOSE_MAX_STACKS: usize = 6_000;
/// How long to wait for symbol tables at the end of a session.
const SYMBOL_PATIENCE: Duration = Duration::from_secs(10);

/// Longest wait for the bell: the delay after which the tracer sees what the worker publishes.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same where idle threads are followed loosely.
const LOOSE_PATIENCE: Duration = Duration::from_millis(500);
/// The same while the interpreter of some process is being searched for.
const STARTING_PATIENCE: Duration = Duration::from_millis(3);
/// Messages handled between two checks for other work.
const ROUND: usize = 64;

/// Input of the worker.
pub(super) struct Inbox {
    /// The work.
    pub(super) messages: Receiver<Message>,
    /// Wakes the worker. It wakes late on purpose: messages are cheaper to handle in batches.
    pub(super) rung: Receiver<()>,
    /// Reads what objects hold.
    pub(super) held: HeldLink,
    /// Tells whether more messages will come.
    pub(super) control: Arc<Control>,
}

/// The worker's state.
pub(super) struct Worker {
    inbox: Inbox,
    /// End of the last written segment, CLOCK_MONOTONIC.
    written_ns: u64,
    recycle: Sender<Box<RawSample>>,
    events: Sender<KeeperEvent>,
    segments: Sender<Segment>,
    fallback: FallbackLink,
    tracks: TrackFeed,
    /// Processes whose ending signal was recorded: pid and start.
    ended: FxHashSet<(i32, u64)>,
    tables: Tables,
    images: FxHashMap<ProcessId, ProcessImage>,
    store: Arc<ModuleStore>,
    module_ids: FxHashMap<u32, ModuleId>,
    code_rules: CodeRules,
    /// Ranks whose processes are sampled; `None` for all.
    ranks: Option<RankChoice>,
    calls: NnModuleCalls,
    regions: Regions,
    progress: Progress,
    /// The session is one snapshot.
    once: bool,
    idle_threads: IdleThreads,
    symbols: SymbolLoader,
    last_stacks: FxHashMap<ThreadId, Option<StackId>>,
    samples: Vec<Sample>,
    /// Threads that ended since the last segment. The next segment lists them.
    gone_threads: Vec<ThreadId>,
    changed: FxHashSet<ProcessId>,
    /// Native frames that were written before their module's symbols were loaded.
    unnamed: FxHashSet<(ModuleId, u64)>,
    next_segment: u64,
    /// The target's cgroups, and for how long they had been throttled at the last read.
    throttled: Option<(CpuGroups, u64)>,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    native: Vec<NativeFrame>,
    recorded: Vec<(NativeFrame, Frame)>,
    python: Vec<Frame>,
    /// Frames of the compiler, and the code objects that they compile.
    compiled: Vec<(usize, CodeId)>,
    /// Python frames, and after each call of a module the module.
    marked: Vec<Frame>,
    /// The runs of `marked`.
    runs: Vec<Range<usize>>,
    merged: Vec<Frame>,
}

impl Worker {
    pub(super) fn new(
        inbox: Inbox,
        recycle: Sender<Box<RawSample>>,
        events: Sender<KeeperEvent>,
        segments: Sender<Segment>,
        fallback: FallbackLink,
        tracks: TrackFeed,
        options: &SessionOptions,
    ) -> Self {
        Self {
            inbox,
            written_ns: monotonic_ns(),
            recycle,
            events,
            segments,
            fallback,
            tracks,
            ended: FxHashSet::default(),
            tables: Tables::default(),
            images: FxHashMap::default(),
            store: Arc::default(),
            module_ids: FxHashMap::default(),
            code_rules: CodeRules::new(options.rules),
            ranks: options.ranks.clone(),
            calls: NnModuleCalls::default(),
            regions: Regions::default(),
            progress: Progress::default(),
            once: options.once,
            idle_threads: options.idle_threads,
            symbols: SymbolLoader::start(!options.once),
            last_stacks: FxHashMap::default(),
            samples: Vec::new(),
            gone_threads: Vec::new(),
            changed: FxHashSet::default(),
            unnamed: FxHashSet::default(),
            next_segment: 0,
            throttled: None,
            scratch: Scratch::default(),
        }
    }

    /// Works until the tracer has sent its last flush, or was given up.
    pub(super) fn run(mut self) {
        loop {
            for _ in 0..ROUND {
                match self.inbox.messages.try_recv() {
                    Ok(Message::Flush(segment)) => {
                        let last = segment.last;
                        self.flush(*segment);
                        if last {
                            return;
                        }
                    }
                    Ok(message) => self.take(message),
                    Err(TryRecvError::Empty) => {
                        self.search_interpreters();
                        let starting = self.images.values().any(ProcessImage::is_starting);
                        let patience = match self.idle_threads {
                            _ if starting => STARTING_PATIENCE,
                            IdleThreads::Close => PATIENCE,
                            IdleThreads::Loose => LOOSE_PATIENCE,
                        };
                        if self.inbox.control.tracer_is_abandoned() {
                            return self.flush_last();
                        }
                        // Messages are checked after a timeout, too.
                        let _ = self.inbox.rung.recv_timeout(patience);
                    }
                    // The tracer failed: otherwise it flushes before it ends.
                    Err(TryRecvError::Disconnected) => return self.flush_last(),
                }
            }
            self.search_interpreters();
        }
    }

    /// Searches for interpreters, and handles findings of the fallback.
    fn search_interpreters(&mut self) {
        self.discover_interpreters();
        while let Ok(finding) = self.fallback.findings.try_recv() {
            self.take_finding(finding);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Process(id, info) => {
                self.take_process(id, *info);
                self.publish_targets();
            }
            Message::Image(id, interpreter) => {
                if interpreter.is_none() {
                    self.take_exec(id);
                }
            }
            Message::Thread(id, info) => match self.tables.threads.entry(id) {
                Entry::Occupied(mut known) => known.get_mut().name = info.name,
                Entry::Vacant(new) => {
                    new.insert(*info);
                }
            },
            Message::Sample(sample) => {
                self.take_sample(&sample);
                // The tracer may have ended.
                let _ = self.recycle.try_send(sample);
            }
            Message::Named(span, stack) => self.take_named(span, &stack),
            Message::Span(span, why) => {
                let stack = match why {
                    Some(why) => self.take_missing(span.thread, why),
                    None => self.last_stacks.get(&span.thread).copied().flatten(),
                };
                self.push(span, stack);
            }
            Message::ThreadGone(id) => {
                self.last_stacks.remove(&id);
                self.gone_threads.push(id);
                self.forget_progress(id);
            }
            Message::ProcessGone(id) => {
                self.images.remove(&id);
                let _ = self.fallback.orders.send(Order::Forget(id));
                let _ = self.inbox.held.watch.send(Watch::End(id));
                if let Some(process) = self.tables.processes.get_mut(id.index()) {
                    process.exited = true;
                    process.last_seen_ns = monotonic_ns();
                    self.changed.insert(id);
                }
            }
            Message::LeftOut(id, note) => self.take_left_out(id, note),
            Message::Flush(_) => {}
        }
    }

    /// Records that no stack of a thread was captured, also for the time until it moves.
    fn take_missing(&mut self, thread: ThreadId, why: Partial) -> Option<StackId> {
        let stack = self.tables.stacks.intern([Frame::Truncated(why)]);
        self.last_stacks.insert(thread, stack);
        stack
    }

    fn push(&mut self, span: Sample, stack: Option<StackId>) {
        if let Some(thread) = self.tables.threads.get_mut(&span.thread) {
            thread.last_seen_ns = thread.last_seen_ns.max(span.start_ns + span.weight_ns);
        }
        self.samples.push(Sample { stack, ..span });
    }
}
