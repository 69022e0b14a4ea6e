//! What stacks tell of waits, collectives and input: each function is looked up once, each stack once per activity.

use crate::model::category::{Activity, FrameKind};
use crate::model::collective::CollectiveMoment;
use crate::model::ids::{FunctionId, StackId};
use crate::model::input::{InputPart, InputTask};
use crate::model::profile::{Function, Profile, ProfileSample};
use crate::model::sample::ThreadState;
use crate::model::wait::{WaitKind, WaitPart};
use crate::torch::collectives;
use crate::torch::rules::is_library;
use crate::torch::rules::syscalls::{CallWait, call_of};
use crate::torch::waits::{self, Moment};
use rustc_hash::FxHashMap;

/// A line of a Python function.
pub type Line = (FunctionId, u32);

/// What is waited for, and the number of the words for it.
type Wait = (WaitKind, usize);

/// Looks functions and stacks up, and remembers what it found.
pub struct StackFacts<'p> {
    profile: &'p Profile,
    waits: FxHashMap<(Option<StackId>, Moment), Option<Wait>>,
    words: Vec<String>,
    word_ids: FxHashMap<String, usize>,
    collectives: FxHashMap<(StackId, Activity), Option<CollectiveMoment>>,
    lines: FxHashMap<StackId, Option<Line>>,
    tasks: FxHashMap<(StackId, bool), InputTask>,
}

impl<'p> StackFacts<'p> {
    /// Nothing looked up yet.
    pub fn new(profile: &'p Profile) -> Self {
        Self {
            profile,
            waits: FxHashMap::default(),
            words: Vec::new(),
            word_ids: FxHashMap::default(),
            collectives: FxHashMap::default(),
            lines: FxHashMap::default(),
            tasks: FxHashMap::default(),
        }
    }

    /// The profile.
    pub fn profile(&self) -> &'p Profile {
        self.profile
    }

    /// The words that [`StackFacts::wait`] gave a number for.
    pub fn words(&self, number: usize) -> &str {
        self.words.get(number).map_or("", String::as_str)
    }

    /// The functions of a stack, from its leaf outward.
    fn functions(&self, stack: Option<StackId>) -> impl Iterator<Item = &'p Function> + use<'p> {
        let profile = self.profile;
        profile.stacks.leaf_to_root(stack).filter_map(|frame| {
            profile
                .functions
                .get(profile.stacks.frame(frame).function.index())
        })
    }

    /// What a sample waits for, and the number of the words for it; `None` where it does not wait.
    pub fn wait(&mut self, sample: &ProfileSample) -> Option<(WaitKind, usize)> {
        if !may_wait(sample.activity) {
            return None;
        }
        let moment = Moment {
            activity: sample.activity,
            state: sample.state,
            call: self.call(sample),
        };
        if let Some(&known) = self.waits.get(&(sample.stack, moment)) {
            return known;
        }
        let frames: Vec<&Function> = self.functions(sample.stack).collect();
        let found = waits::wait(&frames, moment).map(|(kind, what)| {
            let what = match kind {
                WaitKind::Collective => self.collective_words(sample),
                _ => what,
            };
            (kind, self.number_of(&what))
        });
        self.waits.insert((sample.stack, moment), found);
        found
    }

    fn call(&self, sample: &ProfileSample) -> Option<(&'static str, CallWait)> {
        // A system call that a running thread was in is not what it does now.
        let asleep = sample.state != ThreadState::Running;
        let number = sample.syscall.filter(|_| asleep)?;
        call_of(&self.profile.run.architecture, number)
    }

    fn collective_words(&mut self, sample: &ProfileSample) -> String {
        match self.collective(sample) {
            Some(moment) => moment_words(moment),
            None => "collective".to_owned(),
        }
    }

    /// The number that stands for these words.
    pub fn number_of(&mut self, words: &str) -> usize {
        if let Some(&known) = self.word_ids.get(words) {
            return known;
        }
        let number = self.words.len();
        self.words.push(words.to_owned());
        self.word_ids.insert(words.to_owned(), number);
        number
    }

    /// The collective that a sample is in.
    pub fn collective(&mut self, sample: &ProfileSample) -> Option<CollectiveMoment> {
        let stack = sample.stack?;
        if let Some(&known) = self.collectives.get(&(stack, sample.activity)) {
            return known;
        }
        let parts = self
            .functions(Some(stack))
            .map(|function| function.collective);
        let found = collectives::collective(parts, sample.activity);
        self.collectives.insert((stack, sample.activity), found);
        found
    }

    /// Whether a stack waits in a DataLoader's queue, or takes a batch out of it.
    pub fn is_in_loader_queue(&self, stack: Option<StackId>) -> bool {
        self.functions(stack)
            .any(|function| function.wait == WaitPart::Loader)
    }

    /// The nearest line of the user's own code; where there is none, of a package's; where there is none, of any.
    pub fn line(&mut self, stack: Option<StackId>) -> Option<Line> {
        let stack = stack?;
        if let Some(&known) = self.lines.get(&stack) {
            return known;
        }
        let mut package = None;
        let mut any = None;
        let mut own = None;
        for frame in self.profile.stacks.leaf_to_root(Some(stack)) {
            let frame = self.profile.stacks.frame(frame);
            let Some(function) = self.profile.functions.get(frame.function.index()) else {
                continue;
            };
            let line = (frame.function, frame.line);
            if function.kind == FrameKind::PythonUser {
                own = Some(line);
                break;
            }
            if function.is_python {
                any = any.or(Some(line));
                if !is_library(&function.file) && !function.plumbing {
                    package = package.or(Some(line));
                }
            }
        }
        let found = own.or(package).or(any);
        self.lines.insert(stack, found);
        found
    }

    /// The line of the leaf-most Python function: where a thread itself is.
    pub fn leaf_line(&self, stack: Option<StackId>) -> Option<Line> {
        self.profile.stacks.leaf_to_root(stack).find_map(|frame| {
            let frame = self.profile.stacks.frame(frame);
            let function = self.profile.functions.get(frame.function.index())?;
            function.is_python.then_some((frame.function, frame.line))
        })
    }

    /// What making a batch a sample is about, time in the run queue aside.
    pub fn task(&mut self, sample: &ProfileSample) -> InputTask {
        if sample.activity == Activity::GilWait {
            return InputTask::GilWait;
        }
        let Some(stack) = sample.stack else {
            return InputTask::Other;
        };
        let reads = sample.activity == Activity::Io;
        if let Some(&known) = self.tasks.get(&(stack, reads)) {
            return known;
        }
        let parts: Vec<InputPart> = self
            .functions(Some(stack))
            .map(|function| function.input)
            .collect();
        let found = match (input_task(&parts), reads) {
            (InputTask::Idle | InputTask::Send, _) | (_, false) => input_task(&parts),
            (_, true) => InputTask::Read,
        };
        self.tasks.insert((stack, reads), found);
        found
    }
}

fn may_wait(activity: Activity) -> bool {
    matches!(
        activity,
        Activity::GpuSync
            | Activity::GpuCopy
            | Activity::CollectiveWait
            | Activity::GilWait
            | Activity::OmpIdle
            | Activity::LockWait
            | Activity::Io
            | Activity::Sleep
    )
}

/// The nearest task; the user's own code where it is all that stands below the fetch. The loop that asks for batches is no dataset.
fn input_task(leaf_to_root: &[InputPart]) -> InputTask {
    let mut own = false;
    for part in leaf_to_root {
        match part {
            InputPart::Task(task) => return *task,
            InputPart::Own => own = true,
            InputPart::Fetch | InputPart::Loop if own => return InputTask::Dataset,
            InputPart::Fetch | InputPart::Loop => break,
            InputPart::None => {}
        }
    }
    InputTask::Other
}

/// `all_reduce (DDP bucket)`.
pub fn moment_words(moment: CollectiveMoment) -> String {
    match (moment.name, moment.issuer) {
        (Some(name), Some(issuer)) => format!("{name} ({})", issuer.name()),
        (Some(name), None) => name.to_owned(),
        (None, Some(issuer)) => issuer.name().to_owned(),
        (None, None) => "collective".to_owned(),
    }
}
