//! What a function is, once per function; and what a stack was doing, once per stack.

use super::rules::syscalls::{Wait, wait_of};
use super::rules::{PhaseMark, PythonWait, Says, Special};
use crate::model::category::{Activity, ActivityGroup, FrameKind, Phase, SummaryRow};
use crate::model::sample::ThreadState;

/// What the rules say of a function, as far as stacks are classified by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionClass {
    /// Its colour.
    pub kind: FrameKind,
    /// Whether it only passes a call on.
    pub plumbing: bool,
    /// Its part in finding the activity.
    pub says: Says,
    /// Its part in finding the phase.
    pub mark: Option<PhaseMark>,
    /// Its part where a thread sleeps below it.
    pub wait: PythonWait,
    /// It has a part of its own.
    pub special: Special,
    /// Its name is that of a function which makes a batch.
    pub makes_batch: bool,
}

impl FunctionClass {
    /// A truncation marker.
    pub const MARKER: FunctionClass = FunctionClass {
        kind: FrameKind::Marker,
        plumbing: false,
        says: Says::Marker,
        mark: None,
        wait: PythonWait::None,
        special: Special::No,
        makes_batch: false,
    };
}

/// What is known of a thread besides its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Situation {
    /// It was on a CPU, or waiting for one.
    pub running: bool,
    /// It was asleep for certain.
    pub asleep: bool,
    /// What its system call says.
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
            // D: nearly always a disk, a page of a file, or a driver, of which the stack knows.
            ThreadState::Uninterruptible => Some(by_call.unwrap_or(Wait::Io)),
            // Stopped by someone's SIGSTOP or debugger: it waits for that to end.
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

/// The phase that the frames of a stack tell, leaf first; `None` where they tell none. The order of
/// precedence is written down in `docs/src/attribution.md`.
pub fn phase(leaf_to_root: impl Iterator<Item = FunctionClass>) -> Option<Phase> {
    let mut weak = None;
    let mut strong = None;
    let mut import = false;
    let mut left_engine = false;
    // Whose the nearest code is that is the user's or a framework's.
    let mut around = None;
    for class in leaf_to_root {
        // A folder of the user's own may be called as a framework is.
        around = around.or(match class.mark {
            _ if class.kind == FrameKind::PythonUser => Some(Phase::User),
            Some(PhaseMark::Around(phase)) => Some(phase),
            _ => None,
        });
        match class.mark {
            Some(PhaseMark::Whole(phase)) => return Some(phase),
            // Past the nearest strong mark, all that matters is what a forward was called for.
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
            Some(PhaseMark::Around(_) | PhaseMark::None) | None => {}
        }
    }
    let told = strong.or(weak).or(import.then_some(Phase::Startup));
    match (told, around) {
        (None | Some(Phase::User), Some(Phase::Framework)) => around,
        _ => told,
    }
}

/// What was passed on the way from the leaf to the first frame that is known.
#[derive(Default)]
struct Passed {
    native: bool,
    named: bool,
    interpreter: bool,
    torch: bool,
    cuda: bool,
    anonymous: bool,
    foreign: bool,
}

impl Passed {
    /// The activity of a running thread whose search ended without a known frame.
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

/// The activity that a stack tells, its leaf first. The order of precedence is written down in
/// `docs/src/attribution.md`.
pub fn activity(
    leaf_to_root: impl Iterator<Item = FunctionClass>,
    situation: Situation,
) -> Activity {
    let mut frames = leaf_to_root;
    let mut wait = situation.wait;
    let mut passed = Passed::default();
    while let Some(class) = frames.next() {
        match class.says {
            Says::Marker => {}
            Says::Through(named_wait) => {
                passed.native = true;
                passed.named = true;
                let counts = named_wait == Some(Wait::Io) || !situation.running;
                if wait.is_none() && counts && named_wait.is_some() {
                    wait = named_wait;
                }
            }
            Says::Known { active, asleep } => {
                let found = known(active, asleep, wait, &passed);
                return in_context(found, &mut frames);
            }
            Says::Interpreter => {
                passed.native = true;
                passed.interpreter = true;
            }
            Says::TorchOther => {
                passed.native = true;
                passed.torch |= !passed.interpreter;
            }
            Says::CudaOther => {
                passed.native = true;
                passed.cuda |= !passed.interpreter;
            }
            Says::Anonymous => {
                passed.native = true;
                passed.anonymous |= !passed.interpreter;
            }
            Says::Foreign => {
                passed.native = true;
                passed.foreign |= !passed.interpreter;
            }
            Says::Loading => {
                return match wait {
                    Some(wait) => by_wait(wait),
                    None if passed.interpreter => Activity::Python,
                    None => Activity::NativeOther,
                };
            }
            Says::Python => return at_python(class, &mut frames, wait, &passed, situation),
        }
    }
    at_root(wait, &passed, situation)
}

fn known(
    active: Activity,
    asleep: Option<Activity>,
    wait: Option<Wait>,
    passed: &Passed,
) -> Activity {
    match (wait, asleep) {
        (Some(_), Some(activity)) => activity,
        (Some(wait), None) => by_wait(wait),
        // Glue that calls code which no rule knows did not do that code's work.
        (None, _)
            if passed.foreign && matches!(active, Activity::Dispatch | Activity::Autograd) =>
        {
            Activity::NativeOther
        }
        // The interpreter does its own work, also where native code calls it.
        (None, _) if passed.interpreter => Activity::Python,
        (None, _) => active,
    }
}

/// What the callers of a known function make of it: a copy that `.item()` makes is a wait for the
/// GPU; what registers kernels and bindings while a library is loaded neither computes nor
/// dispatches; autograd's part of a forward is the dispatch of an operator.
fn in_context(found: Activity, outward: &mut impl Iterator<Item = FunctionClass>) -> Activity {
    let mut callers = outward.take_while(|class| class.says != Says::Python);
    match found {
        Activity::GpuCopy => {
            let is_sync = |class: FunctionClass| {
                matches!(
                    class.says,
                    Says::Known {
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
        // What a forward's wrapper writes down for backward, and what goes with a tensor that is
        // given up.
        Activity::Autograd => match callers.find_map(of_known) {
            Some(told @ (Activity::Dispatch | Activity::NativeOther)) => told,
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
    callers.any(|class| class.says == Says::Loading)
}

fn of_known(class: FunctionClass) -> Option<Activity> {
    match class.says {
        Says::Known { active, .. } if active != Activity::Autograd || class.plumbing => {
            Some(active)
        }
        Says::Loading => Some(Activity::NativeOther),
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
    passed: &Passed,
    situation: Situation,
) -> Activity {
    match wait {
        // The interpreter calls the C library's wait from its evaluation loop in one place only:
        // `take_gil`, inlined.
        Some(Wait::Lock)
            if passed.named && !passed.interpreter && !passed.foreign && !passed.torch =>
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
        None if situation.asleep && !passed.native => Activity::Sleep,
        None => passed.activity(true),
    }
}

fn at_root(wait: Option<Wait>, passed: &Passed, situation: Situation) -> Activity {
    match wait {
        Some(wait) => by_wait(wait),
        None if situation.asleep && !passed.foreign && !passed.cuda => Activity::Sleep,
        None => passed.activity(false),
    }
}

/// The activity of a moment in which a process takes its libraries down: these neither communicate
/// nor use a device any more.
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
        (phase, Activity::GilWait) if !matches!(phase, Phase::Startup | Phase::Compile) => {
            SummaryRow::Python
        }
        (Phase::Input, _) => SummaryRow::Input,
        (Phase::Communication, _) => SummaryRow::Communication,
        (_, activity) if activity.group() == ActivityGroup::Collective => SummaryRow::Communication,
        (_, Activity::CpuWait) => SummaryRow::CpuWait,
        (Phase::Startup, _) => SummaryRow::Startup,
        (Phase::Compile, _) => SummaryRow::Compile,
        (Phase::Shutdown | Phase::Checkpoint, _) => SummaryRow::Other,
        (_, Activity::GpuSync) => SummaryRow::GpuWait,
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
