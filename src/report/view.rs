//! Which threads, waits and frames of a profile are drawn. Shared by flame graph, speedscope and
//! folded stacks, so that they agree.
//!
//! Every thread has its own root. Times of two threads are never added.

use super::label;
use crate::model::category::{Activity, FrameKind, Phase};
use crate::model::depth::{MAX_DEPTH, keep_ends};
use crate::model::frame::Partial;
use crate::model::ids::{FunctionId, NnModuleId, ProcessId, StackId, ThreadId};
use crate::model::operator::OperatorMark;
use crate::model::profile::{Function, Profile, ProfileSample, Role};
use crate::model::sample::ThreadState;
use regex::Regex;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Maximum number of frames of a stack that are visited.
const MAX_FRAMES: usize = 4 * MAX_DEPTH;

/// Which threads' waits are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// The training thread's entire wall time; for other threads only the time in which they did
    /// something.
    #[default]
    TrainingThread,
    /// Every thread's entire wall time.
    Everywhere,
    /// Of no thread: only the time in which it did something.
    Nowhere,
}

/// How forward passes are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Function,
    /// As `nn.Module`s: the functions between a module and the module that it calls are omitted.
    Module,
}

/// Selection of what is drawn.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// Only threads whose label (`rank 0 · pt_autograd_0`) matches.
    pub threads: Option<Regex>,
    /// Only these processes; `None` for all.
    pub processes: Option<Vec<ProcessId>>,
    /// Whose waits are drawn.
    pub idle: Idle,
    /// Whether dispatcher and binding plumbing is drawn instead of folded into its caller.
    pub plumbing: bool,
    /// Whether Python frames are distinguished by line, as py-spy does, or by function only.
    pub lines: bool,
    /// Whether lines have their numbers; otherwise lines are distinguished by file and function
    /// only.
    pub line_numbers: bool,
    /// Whether Python files are named by their complete paths instead of from their package on.
    pub full_files: bool,
    /// How forward passes are drawn.
    pub by: By,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self {
            threads: None,
            processes: None,
            idle: Idle::default(),
            plumbing: false,
            lines: true,
            line_numbers: true,
            full_files: false,
            by: By::default(),
        }
    }
}

/// A thread that is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub thread: ThreadId,
    pub process: ProcessId,
    /// `rank 0 · MainThread`; with the tid if two labels would be equal.
    pub label: String,
    /// The pid as torchspy sees it.
    pub pid: i32,
    /// The tid as torchspy sees it.
    pub tid: i32,
    /// Whether it is a trainer's training thread.
    pub training: bool,
    /// All of its sampled time.
    pub wall_ns: u64,
    /// The part of `wall_ns` that is drawn; the rest is waits that are not drawn.
    pub drawn_ns: u64,
}

/// A frame of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shown {
    Code {
        function: FunctionId,
        /// The source line; 0 where unknown, and for native code.
        line: u32,
    },
    /// An `nn.Module`.
    Module(NnModuleId),
    /// The stack is truncated towards the root. At the root end.
    Partial(Partial),
    /// No stack was captured.
    NotCaptured,
    /// The thread was runnable without a CPU. At the leaf end.
    CpuWait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ViewFrame {
    pub shown: Shown,
    /// Whether the unwinder got here by a checked guess.
    pub guessed: bool,
}

/// An interval of one thread's time that is drawn as one stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Index into [`View::roots`].
    pub root: usize,
    /// The stack, for [`View::frames`].
    pub stack: Option<StackId>,
    /// Whether this is the part of a sample in which the thread waited for a CPU.
    pub queued: bool,
    /// Start, CLOCK_MONOTONIC. It is not known when the thread waited within a sample; the wait is
    /// put last.
    pub start_ns: u64,
    /// Length; never 0.
    pub weight_ns: u64,
    /// Ticks that it stands for. A sample's ticks are divided between its two parts without loss,
    /// so this may be 0.
    pub ticks: u32,
    pub phase: Phase,
    /// The activity; `cpu_wait` for a queued part.
    pub activity: Activity,
}

/// A profile as it is drawn.
#[derive(Debug)]
pub struct View<'a> {
    profile: &'a Profile,
    options: ViewOptions,
    roots: Vec<Root>,
    root_of_thread: Vec<Option<usize>>,
}

impl<'a> View<'a> {
    /// Applies `options`. Threads without anything to draw are omitted.
    pub fn new(profile: &'a Profile, options: &ViewOptions) -> Self {
        let mut view = Self {
            profile,
            options: options.clone(),
            roots: Vec::new(),
            root_of_thread: vec![None; profile.threads.len()],
        };
        let mut roots = view.candidates();
        for sample in &profile.samples {
            if let Some(Some(root)) = roots.get_mut(sample.thread.index()) {
                root.wall_ns = root.wall_ns.saturating_add(sample.weight_ns);
                root.drawn_ns = root
                    .drawn_ns
                    .saturating_add(view.run_part(root.training, sample) + queue_part(sample));
            }
        }
        view.roots = roots
            .into_iter()
            .flatten()
            .filter(|root| root.drawn_ns > 0)
            .collect();
        let places: Vec<_> = profile
            .processes
            .iter()
            .map(|process| place(profile, process.role))
            .collect();
        view.roots.sort_by_key(|root| {
            let process = places.get(root.process.index()).copied();
            (
                process,
                root.process,
                !root.training,
                Reverse(root.drawn_ns),
                root.thread,
            )
        });
        for (index, root) in view.roots.iter().enumerate() {
            view.root_of_thread[root.thread.index()] = Some(index);
        }
        view
    }

    pub fn profile(&self) -> &'a Profile {
        self.profile
    }

    /// The threads that are drawn: each trainer's training thread, its other threads, its
    /// DataLoader workers; then launchers and other processes.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// The drawn intervals of all samples, by thread and start.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> + '_ {
        let mut tick_debt = vec![0.0_f64; self.roots.len()];
        self.profile.samples.iter().flat_map(move |sample| {
            let root = self
                .root_of_thread
                .get(sample.thread.index())
                .copied()
                .flatten();
            let parts = root.map(|root| self.parts(root, sample, &mut tick_debt[root]));
            parts.into_iter().flatten().flatten()
        })
    }

    fn parts(
        &self,
        root: usize,
        sample: &ProfileSample,
        tick_debt: &mut f64,
    ) -> [Option<Interval>; 2] {
        let queue_ns = queue_part(sample);
        let run_ns = self.run_part(self.roots[root].training, sample);
        // If two parts share a tick, the rounding error is carried to the thread's next sample.
        let queue_share = queue_ns as f64 / sample.weight_ns.max(1) as f64;
        let wanted = f64::from(sample.ticks) * queue_share + *tick_debt;
        let queue_ticks = if queue_ns == 0 {
            0
        } else {
            (wanted + 1e-9).floor().clamp(0.0, f64::from(sample.ticks)) as u32
        };
        if queue_ns > 0 {
            *tick_debt = wanted - f64::from(queue_ticks);
        }
        let run = Interval {
            root,
            stack: sample.stack,
            queued: false,
            start_ns: sample.start_ns,
            weight_ns: run_ns,
            ticks: sample.ticks - queue_ticks,
            phase: sample.phase,
            activity: sample.activity,
        };
        let queue = Interval {
            queued: true,
            start_ns: sample.start_ns.saturating_add(sample.weight_ns - queue_ns),
            weight_ns: queue_ns,
            ticks: queue_ticks,
            activity: Activity::CpuWait,
            ..run
        };
        [(run_ns > 0).then_some(run), (queue_ns > 0).then_some(queue)]
    }

    /// The frames of an interval's stack, root first, with plumbing folded into its caller.
    pub fn frames(&self, stack: Option<StackId>, queued: bool) -> Vec<ViewFrame> {
        let known = stack.filter(|stack| stack.index() < self.profile.stacks.stacks().len());
        let mut frames = self.stack_frames(known, self.options.plumbing);
        if !self.options.plumbing
            && !frames
                .iter()
                .any(|frame| matches!(frame.shown, Shown::Code { .. } | Shown::Module(_)))
        {
            frames = self.stack_frames(known, true);
        }
        if frames.is_empty() {
            frames.push(ViewFrame {
                shown: Shown::NotCaptured,
                guessed: false,
            });
        }
        if queued {
            frames.push(ViewFrame {
                shown: Shown::CpuWait,
                guessed: false,
            });
        }
        frames
    }

    /// The label of a frame in a box or a list.
    pub fn label(&self, shown: Shown) -> String {
        match shown {
            Shown::Code { function, line } => match self.profile.function(function) {
                Some(function) if self.options.full_files => {
                    label::full_function_label(function, line)
                }
                Some(function) => label::function_label(function, line),
                None => "[unknown function]".to_owned(),
            },
            Shown::Module(id) => match self.profile.nn_module(id) {
                Some(module) => label::clean(&module.label(), label::SHORT),
                None => "[unknown module]".to_owned(),
            },
            Shown::Partial(reason) => format!("[partial: {}]", reason.name()),
            Shown::NotCaptured => "[not captured]".to_owned(),
            Shown::CpuWait => "[cpu_wait]".to_owned(),
        }
    }

    /// The function of a frame; `None` for other frames.
    pub fn function(&self, shown: Shown) -> Option<&'a Function> {
        match shown {
            Shown::Code { function, .. } => self.profile.function(function),
            _ => None,
        }
    }

    /// The file of a function, as shown where there is room.
    pub fn file<'f>(&self, function: &'f Function) -> &'f str {
        match self.options.full_files {
            true => &function.file,
            false => label::package_path(&function.file),
        }
    }

    /// What kind of code a frame is.
    pub fn kind(&self, shown: Shown) -> FrameKind {
        match shown {
            Shown::Code { .. } => self
                .function(shown)
                .map_or(FrameKind::Native, |function| function.kind),
            Shown::Module(_) => FrameKind::PythonTorch,
            Shown::Partial(_) | Shown::NotCaptured => FrameKind::Marker,
            Shown::CpuWait => FrameKind::Wait,
        }
    }

    fn stack_frames(&self, stack: Option<StackId>, plumbing: bool) -> Vec<ViewFrame> {
        let mut frames: Vec<ViewFrame> = self
            .profile
            .stacks
            .leaf_to_root(stack)
            .take(MAX_FRAMES)
            .filter_map(|id| {
                let frame = self.profile.stacks.frame(id);
                if let Some(reason) = frame.partial {
                    return Some(ViewFrame {
                        shown: Shown::Partial(reason),
                        guessed: false,
                    });
                }
                let by_module = self.options.by == By::Module;
                if let Some(id) = frame.nn_module {
                    return by_module.then_some(ViewFrame {
                        shown: Shown::Module(id),
                        guessed: false,
                    });
                }
                let function = self.profile.function(frame.function)?;
                let replaced = by_module && function.operator == OperatorMark::ModuleCall;
                if replaced || (function.plumbing && !plumbing) {
                    return None;
                }
                let line = match (function.is_python, self.options.lines) {
                    (false, _) => 0,
                    (true, _) if !self.options.line_numbers => 0,
                    (true, true) => frame.line,
                    (true, false) => function.first_line,
                };
                let guessed = frame.trust.is_some_and(|trust| trust.is_guess());
                Some(ViewFrame {
                    shown: Shown::Code {
                        function: frame.function,
                        line,
                    },
                    guessed,
                })
            })
            .collect();
        frames.reverse();
        if !plumbing {
            self.leave_out_start(&mut frames);
        }
        let marker = ViewFrame {
            shown: Shown::Partial(Partial::TooDeep),
            guessed: false,
        };
        keep_ends(&mut frames, marker, |_| true);
        if self.options.by == By::Module {
            leave_out_between_modules(&mut frames);
        }
        frames
    }

    /// Leaves out the base that all stacks share, unless it is the whole stack.
    fn leave_out_start(&self, frames: &mut Vec<ViewFrame>) {
        let is_start = |frame: &ViewFrame| {
            let function = self.function(frame.shown);
            function.is_some_and(|it| !it.is_python && label::is_start(&it.file, &it.name))
        };
        let base = frames.iter().take_while(|frame| is_start(frame)).count();
        if base < frames.len() {
            frames.drain(..base);
        }
    }

    /// The drawn part of a sample's time outside the run queue.
    fn run_part(&self, training: bool, sample: &ProfileSample) -> u64 {
        let hides = match self.options.idle {
            Idle::TrainingThread => !training,
            Idle::Everywhere => false,
            Idle::Nowhere => true,
        };
        let hidden = hides && is_idle(sample);
        if hidden {
            0
        } else {
            sample.weight_ns - queue_part(sample)
        }
    }

    /// Threads that `options` selects, by [`ThreadId`], with no time yet.
    fn candidates(&self) -> Vec<Option<Root>> {
        let profile = self.profile;
        let labels = thread_labels(profile);
        let any_trainer = profile
            .processes
            .iter()
            .any(|process| matches!(process.role, Role::Trainer { .. }));
        let threads = profile.threads.iter().zip(labels).enumerate();
        threads
            .map(|(index, (thread, label))| {
                let wanted_process = self
                    .options
                    .processes
                    .as_ref()
                    .is_none_or(|ids| ids.contains(&thread.process));
                let wanted_thread = self
                    .options
                    .threads
                    .as_ref()
                    .is_none_or(|pattern| pattern.is_match(&label));
                let process = profile.process(thread.process);
                let id = ThreadId::from_index(index);
                (wanted_process && wanted_thread).then(|| Root {
                    thread: id,
                    process: thread.process,
                    label,
                    pid: process.map_or(0, |process| process.info.pid),
                    tid: thread.tid,
                    training: process.is_some_and(|process| {
                        let trains = match process.role {
                            Role::Trainer { .. } => true,
                            // A Python program without torch still has one thread that matters
                            // most.
                            Role::Other => !any_trainer,
                            Role::Launcher | Role::DataLoaderWorker { .. } => false,
                        };
                        trains && process.training_thread == Some(id)
                    }),
                    wall_ns: 0,
                    drawn_ns: 0,
                })
            })
            .collect()
    }
}

/// Omits frames between two modules, and all but the first of equal neighbours: a wrapper counts as
/// its module.
fn leave_out_between_modules(frames: &mut Vec<ViewFrame>) {
    let is_module = |frame: &ViewFrame| matches!(frame.shown, Shown::Module(_));
    let (Some(first), Some(last)) = (
        frames.iter().position(is_module),
        frames.iter().rposition(is_module),
    ) else {
        return;
    };
    let mut modules: Vec<ViewFrame> = frames
        .drain(first..=last)
        .filter(|frame| is_module(frame))
        .collect();
    modules.dedup();
    frames.splice(first..first, modules);
}

fn queue_part(sample: &ProfileSample) -> u64 {
    sample.queue_ns.min(sample.weight_ns)
}

/// Whether a thread had nothing to do: it slept in a wait for others or for work. Time on a CPU, in
/// disk I/O (state D), or in a wait for the GPU, a collective or the GIL is of interest to a
/// reader, and is not idle.
pub(super) fn is_idle(sample: &ProfileSample) -> bool {
    let asleep = matches!(sample.state, ThreadState::Sleeping | ThreadState::Stopped);
    match sample.activity {
        Activity::OmpIdle => true,
        Activity::LockWait | Activity::Sleep => sample.state != ThreadState::Running,
        Activity::GpuSync | Activity::CollectiveWait | Activity::GilWait | Activity::CpuWait => {
            false
        }
        _ => asleep,
    }
}

/// Sort key of a process among the roots: class, then its trainer's rank, then itself before its
/// workers.
fn place(profile: &Profile, role: Role) -> (u8, u32, u32) {
    match role {
        Role::Trainer { rank, .. } => (0, rank.unwrap_or(0), 0),
        Role::DataLoaderWorker { number, trainer } => {
            let trainer = trainer.and_then(|id| profile.process(id));
            match trainer.map(|trainer| trainer.role) {
                Some(Role::Trainer { rank, .. }) => {
                    (0, rank.unwrap_or(0), number.saturating_add(1))
                }
                _ => (1, 0, number),
            }
        }
        Role::Launcher => (2, 0, 0),
        Role::Other => (3, 0, 0),
    }
}

/// `rank 0 · MainThread` for every thread; with the tid if two threads of a process have one name,
/// as OpenMP's threads do.
pub fn thread_labels(profile: &Profile) -> Vec<String> {
    let processes = label::process_labels(profile);
    let mut seen = FxHashMap::<String, u32>::default();
    let plain: Vec<String> = profile
        .threads
        .iter()
        .map(|thread| {
            let process = profile.process(thread.process);
            let is_main =
                thread.is_python && process.is_some_and(|process| process.info.pid == thread.tid);
            let name = if is_main {
                "MainThread".to_owned()
            } else {
                label::clean(&thread.name, 40)
            };
            let process = processes
                .get(thread.process.index())
                .map_or("unknown process", String::as_str);
            let label = format!("{process} · {name}");
            *seen.entry(label.clone()).or_default() += 1;
            label
        })
        .collect();
    plain
        .into_iter()
        .zip(&profile.threads)
        .map(|(label, thread)| {
            if seen[&label] > 1 {
                format!("{label} (tid {})", thread.tid)
            } else {
                label
            }
        })
        .collect()
}
