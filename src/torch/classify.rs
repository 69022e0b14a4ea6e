//! Classifies functions, once each, and stacks, once each.

use super::rules::syscalls::{Wait, wait_of};
use super::rules::{FrameRole, PhaseMark, PythonWait, Special};
use crate::model::category::{Activity, ActivityGroup, FrameKind, Phase, SummaryRow};
use crate::model::sample::ThreadState;

/// What the rules define for a function, as far as the classification of stacks needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionClass {
    /// Its colour in flame graphs.
    pub kind: FrameKind,
    /// Whether it only forwards a call.
    pub plumbing: bool,
    /// Its effect on the activity.
    pub role: FrameRole,
    /// Its effect on the phase.
    pub mark: Option<PhaseMark>,
    /// What a thread that sleeps below it waits for.
    pub wait: PythonWait,
    pub special: Special,
    /// Its name is that of a function that makes a batch.
    pub makes_batch: bool,
}

impl FunctionClass {
    /// A truncation marker.
    pub const MARKER: FunctionClass = FunctionClass {
        kind: FrameKind::Marker,
        plumbing: false,
        role: FrameRole::Marker,
        mark: None,
        wait: PythonWait::None,
        special: Special::No,
        makes_batch: false,
    };
}

/// Facts about a thread besides its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Situation {
    /// It was running or runnable.
    pub running: bool,
    /// It was certainly asleep.
    pub asleep: bool,
    /// From its system call.
    pub wait: Option<Wait>,
}

impl Situation {
    /// From a sample's state and system call.
    pub fn new(architecture: &str, state: ThreadState, syscall: Option<u32>) -> Self {
        let running = state == ThreadState::Running;
        let by_call = syscall.and_then(|number| wait_of(architecture, number));
        let wait = match state {
            ThreadState::Running => None,
            ThreadState::Sleeping | ThreadState::Unknown => by_call,
            // D: nearly always a disk, a page of a file, or a driver, which the stack shows.
            ThreadState::Uninterruptible => Some(by_call.unwrap_or(Wait::Io)),
            // Stopped by SIGSTOP or a debugger: it waits to be continued.
            ThreadState::Stopped => Some(Wait::Sleep),
        };
        Self {
            running,
            asleep: matches!(
                state,
                ThreadState::Sleeping | ThreadState::Uninterruptible | ThreadState::Stopped
            ),
            wait,
        }
    }
}

/// The phase of a stack, from its frames, leaf first; `None` if no frame decides one. The order of
/// precedence is documented in `docs/src/attribution.md`.
pub fn phase(leaf_to_root: impl Iterator<Item = FunctionClass>) -> Option<Phase> {
    let mut weak = None;
    let mut strong = None;
    let mut import = false;
    let mut left_engine = false;
    // The phase of the nearest code that is the user's own or a framework's.
    let mut owner = None;
    for class in leaf_to_root {
        // A folder of the user's own may have the name of a framework.
        owner = owner.or(match class.mark {
            _ if class.kind == FrameKind::PythonUser => Some(Phase::User),
            Some(PhaseMark::Fallback(phase)) => Some(phase),
            _ => None,
        });
        match class.mark {
            Some(PhaseMark::Whole(phase)) => return Some(phase),
            // After the nearest strong mark, it only matters which phase called a forward.
            Some(PhaseMark::Again(phase)) if strong == Some(Phase::Forward) && !left_engine => {
                strong = Some(phase);
            }
            Some(PhaseMark::Strong(Phase::Backward)) if strong.is_some() => left_engine = true,
            _ if strong.is_some() => {}
            Some(PhaseMark::Strong(phase) | PhaseMark::Again(phase)) => {
                strong = Some(weak.unwrap_or(phase));
            }
            Some(PhaseMark::Weak(phase)) => weak = weak.or(Some(phase)),
            Some(PhaseMark::Import) => {
                weak = None;
                import = true;
            }
            Some(PhaseMark::Fallback(_) | PhaseMark::None) | None => {}
        }
    }
    let found = strong.or(weak).or(import.then_some(Phase::Startup));
    match (found, owner) {
        (None | Some(Phase::User), Some(Phase::Framework)) => owner,
        _ => found,
    }
}

/// Kinds of the frames between the leaf and the first frame that decides the activity.
#[derive(Default)]
struct SkippedFrames {
    native: bool,
    named: bool,
    interpreter: bool,
    torch: bool,
    cuda: bool,
    anonymous: bool,
    foreign: bool,
}

impl SkippedFrames {
    /// The activity of a running thread if the search ended without a known frame.
    fn activity(&self, at_python: bool) -> Activity {
        if self.foreign {
            Activity::NativeOther
        } else if self.cuda {
            Activity::GpuLaunch
        } else if self.torch {
            if at_python {
                Activity::Dispatch
            } else {
                Activity::NativeOther
            }
        } else if self.anonymous {
            Activity::Unclassified
        } else if at_python || self.interpreter {
            Activity::Python
        } else if self.named {
            Activity::NativeOther
        } else {
            Activity::Unclassified
        }
    }
}

/// The activity of a stack, from its frames, leaf first. The order of precedence is documented in
/// `docs/src/attribution.md`.
pub fn activity(
    leaf_to_root: impl Iterator<Item = FunctionClass>,
    situation: Situation,
) -> Activity {
    let mut frames = leaf_to_root;
    let mut wait = situation.wait;
    let mut skipped = SkippedFrames::default();
    while let Some(class) = frames.next() {
        match class.role {
            FrameRole::Marker => {}
            FrameRole::Through(named_wait) => {
                skipped.native = true;
                skipped.named = true;
                let counts = named_wait == Some(Wait::Io) || !situation.running;
                if wait.is_none() && counts && named_wait.is_some() {
                    wait = named_wait;
                }
            }
            FrameRole::Known { active, asleep } => {
                let found = known(active, asleep, wait, &skipped);
                return in_context(found, &mut frames);
            }
            FrameRole::Interpreter => {
                skipped.native = true;
                skipped.interpreter = true;
            }
            FrameRole::TorchOther => {
                skipped.native = true;
                skipped.torch |= !skipped.interpreter;
            }
            FrameRole::CudaOther => {
                skipped.native = true;
                skipped.cuda |= !skipped.interpreter;
            }
            FrameRole::Anonymous => {
                skipped.native = true;
                skipped.anonymous |= !skipped.interpreter;
            }
            FrameRole::Foreign => {
                skipped.native = true;
                skipped.foreign |= !skipped.interpreter;
            }
            FrameRole::Loading => {
                return match wait {
                    Some(wait) => by_wait(wait),
                    None if skipped.interpreter => Activity::Python,
                    None => Activity::NativeOther,
                };
            }
            FrameRole::Python => return at_python(class, &mut frames, wait, &skipped, situation),
        }
    }
    at_root(wait, &skipped, situation)
}

fn known(
    active: Activity,
    asleep: Option<Activity>,
    wait: Option<Wait>,
    skipped: &SkippedFrames,
) -> Activity {
    match (wait, asleep) {
        (Some(_), Some(activity)) => activity,
        (Some(wait), None) => by_wait(wait),
        // Glue that calls code without a rule did not do that code's work.
        (None, _)
            if skipped.foreign && matches!(active, Activity::Dispatch | Activity::Autograd) =>
        {
            Activity::NativeOther
        }
        // The interpreter does its own work, also if native code calls it.
        (None, _) if skipped.interpreter => Activity::Python,
        (None, _) => active,
    }
}

/// The effect of the callers of a known function: a copy inside `.item()` is a wait for the GPU; a
/// wait for the GPU inside of NCCL's barrier is one for other ranks;
/// code that registers kernels and bindings while a library is loaded neither computes nor
/// dispatches; autograd's part of a forward is the dispatch of an operator.
fn in_context(found: Activity, outward: &mut impl Iterator<Item = FunctionClass>) -> Activity {
    let mut callers = outward.take_while(|class| class.role != FrameRole::Python);
    match found {
        Activity::GpuCopy => {
            let is_sync = |class: FunctionClass| {
                matches!(
                    class.role,
                    FrameRole::Known {
                        active: Activity::GpuSync,
                        ..
                    }
                )
            };
            if callers.any(is_sync) {
                Activity::GpuSync
            } else {
                found
            }
        }
        // A host that waits until a collective's kernel has ended on its device waits for the other
        // ranks: NCCL's barrier.
        Activity::GpuSync => {
            let is_collective = |class: FunctionClass| {
                matches!(
                    class.role,
                    FrameRole::Known {
                        active: Activity::CollectiveWait,
                        ..
                    }
                )
            };
            match callers.any(is_collective) {
                true => Activity::CollectiveWait,
                false => found,
            }
        }
        // Autograd's bookkeeping in a forward's wrapper, and the release of a tensor.
        Activity::Autograd => match callers.find_map(of_known) {
            Some(found @ (Activity::Dispatch | Activity::NativeOther)) => found,
            _ => found,
        },
        Activity::Dispatch
        | Activity::GpuLaunch
        | Activity::GpuAlloc
        | Activity::CollectiveCall
            if is_loading(&mut callers) =>
        {
            Activity::NativeOther
        }
        _ if found.group() == ActivityGroup::Compute && is_loading(&mut callers) => {
            Activity::NativeOther
        }
        _ => found,
    }
}

fn is_loading(callers: &mut impl Iterator<Item = FunctionClass>) -> bool {
    callers.any(|class| class.role == FrameRole::Loading)
}

fn of_known(class: FunctionClass) -> Option<Activity> {
    match class.role {
        FrameRole::Known { active, .. } if active != Activity::Autograd || class.plumbing => {
            Some(active)
        }
        FrameRole::Loading => Some(Activity::NativeOther),
        _ => None,
    }
}

fn by_wait(wait: Wait) -> Activity {
    match wait {
        Wait::Lock => Activity::LockWait,
        Wait::Io => Activity::Io,
        Wait::Sleep => Activity::Sleep,
    }
}

fn at_python(
    nearest: FunctionClass,
    outward: &mut impl Iterator<Item = FunctionClass>,
    wait: Option<Wait>,
    skipped: &SkippedFrames,
    situation: Situation,
) -> Activity {
    match wait {
        // The interpreter calls the C library's wait from its evaluation loop in one function only:
        // `take_gil`, inlined.
        Some(Wait::Lock)
            if skipped.named && !skipped.interpreter && !skipped.foreign && !skipped.torch =>
        {
            Activity::GilWait
        }
        Some(Wait::Sleep) => {
            let decides = std::iter::once(nearest)
                .chain(outward)
                .find(|class| class.wait != PythonWait::CallerDecides);
            match decides {
                Some(class) if class.wait == PythonWait::Queue => Activity::LockWait,
                _ => Activity::Sleep,
            }
        }
        Some(wait) => by_wait(wait),
        None if situation.asleep && !skipped.native => Activity::Sleep,
        None => skipped.activity(true),
    }
}

fn at_root(wait: Option<Wait>, skipped: &SkippedFrames, situation: Situation) -> Activity {
    match wait {
        Some(wait) => by_wait(wait),
        None if situation.asleep && !skipped.foreign && !skipped.cuda => Activity::Sleep,
        None => skipped.activity(false),
    }
}

/// The activity while a process unloads its libraries at exit: these no longer communicate or use a
/// device.
pub fn at_exit(found: Activity) -> Activity {
    match found.group() {
        ActivityGroup::Collective | ActivityGroup::Gpu => Activity::NativeOther,
        _ => found,
    }
}

/// The summary's row for a phase and an activity, by the table in `docs/src/attribution.md`.
pub fn row(phase: Phase, activity: Activity) -> SummaryRow {
    match (phase, activity) {
        // Another thread holds the lock, whatever this one was about to do.
        (phase, Activity::GilWait)
            if !matches!(phase, Phase::Startup | Phase::Shutdown | Phase::Compile) =>
        {
            SummaryRow::Python
        }
        (Phase::Input, _) => SummaryRow::Input,
        (Phase::Communication, _) => SummaryRow::Communication,
        (_, activity) if activity.group() == ActivityGroup::Collective => SummaryRow::Communication,
        (_, Activity::CpuWait) => SummaryRow::CpuWait,
        (Phase::Startup, _) => SummaryRow::Startup,
        (Phase::Shutdown, _) => SummaryRow::Shutdown,
        (Phase::Compile, _) => SummaryRow::Compile,
        (Phase::Checkpoint, _) => SummaryRow::Other,
        (_, Activity::GpuSync | Activity::GpuCopy) => SummaryRow::GpuWait,
        (_, Activity::OmpIdle) => SummaryRow::OmpBarrier,
        (_, Activity::Python) => SummaryRow::Python,
        (_, Activity::Unclassified) => SummaryRow::Unclassified,
        (_, activity) => match activity.group() {
            ActivityGroup::Compute | ActivityGroup::Dispatch | ActivityGroup::Gpu => {
                SummaryRow::HostComputation
            }
            ActivityGroup::Collective | ActivityGroup::Alone => SummaryRow::Other,
        },
    }
}
