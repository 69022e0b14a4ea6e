//! Facts about samples beyond their stacks: waits, by stack, activity, state and system call;
//! collectives and tasks of making a batch.

use super::stack_facts::Finder;
use crate::model::category::Activity;
use crate::model::facts::{Facts, Wait};
use crate::model::ids::{CollectiveId, StackId};
use crate::model::input::InputTask;
use crate::model::profile::{Function, Profile, ProfileFrame, ProfileSample};
use crate::model::sample::ThreadState;
use crate::model::stack_table::StackTable;
use crate::model::wait::WaitKind;
use crate::torch::collectives;
use crate::torch::rules::RuleSet;
use crate::torch::rules::syscalls::{CallWait, call_of};
use crate::torch::waits::{self, WaitContext};
use rustc_hash::FxHashMap;

/// Determines the facts of all stacks and samples of a profile; of equal stacks only those of the
/// `first`. No stack is added to it afterwards.
pub(super) fn find(profile: &mut Profile, first: &[StackId], rules: &RuleSet) {
    let mut finder = Finder::find(&profile.functions, &profile.stacks, first);
    finder.facts.backends = profile
        .threads
        .iter()
        .map(|thread| rules.thread_backend(&thread.name))
        .collect();
    // nccl2's watchdog has no name of its own.
    for sample in &profile.samples {
        if finder.facts.of(sample.stack).is_watchdog {
            let found = finder.inner(sample.stack).collective.backend;
            if let Some(backend) = finder.facts.backends.get_mut(sample.thread.index()) {
                *backend = backend.or(found);
            }
        }
    }
    let mut states = States {
        rules,
        architecture: &profile.run.architecture,
        functions: &profile.functions,
        stacks: &profile.stacks,
        waits: FxHashMap::default(),
        collectives: FxHashMap::default(),
        finder,
    };
    for sample in &mut profile.samples {
        states.fill(sample);
    }
    profile.facts = states.finder.facts;
}

struct States<'a> {
    rules: &'a RuleSet,
    architecture: &'a str,
    functions: &'a [Function],
    stacks: &'a StackTable<ProfileFrame>,
    waits: FxHashMap<(Option<StackId>, WaitContext), Option<Wait>>,
    /// By stack and activity.
    collectives: FxHashMap<(StackId, Activity), Option<CollectiveId>>,
    finder: Finder<'a>,
}

impl States<'_> {
    fn facts(&mut self) -> &mut Facts {
        &mut self.finder.facts
    }

    fn fill(&mut self, sample: &mut ProfileSample) {
        let call = self.call(sample);
        sample.collective = self.collective(sample);
        sample.wait = self.wait(sample, call);
        sample.task = match (sample.activity, sample.stack) {
            (Activity::GilWait, _) => InputTask::GilWait,
            (_, None) => InputTask::Other,
            (activity, stack) => self.finder.inner(stack).task(activity == Activity::Io),
        };
    }

    /// A system call that a running thread was in has ended or is about to: it is not what the
    /// thread does now.
    fn call(&mut self, sample: &ProfileSample) -> Option<(&'static str, CallWait)> {
        let asleep = sample.state != ThreadState::Running;
        let number = sample.syscall.filter(|_| asleep)?;
        let call = call_of(self.architecture, number)?;
        self.facts().system_calls.insert(number, call.0);
        Some(call)
    }

    fn wait(
        &mut self,
        sample: &ProfileSample,
        call: Option<(&'static str, CallWait)>,
    ) -> Option<Wait> {
        if !may_wait(sample.activity) {
            return None;
        }
        let context = WaitContext {
            activity: sample.activity,
            state: sample.state,
            call,
        };
        if let Some(&known) = self.waits.get(&(sample.stack, context)) {
            return known;
        }
        let functions = self.stacks.leaf_to_root(sample.stack);
        let functions: Vec<&Function> = functions
            .filter_map(|frame| {
                self.functions
                    .get(self.stacks.frame(frame).function.index())
            })
            .collect();
        let found = waits::wait(&functions, context, self.rules).map(|(kind, what)| {
            let collective = self.finder.facts.collective(sample.collective);
            let what = match (kind, collective) {
                (WaitKind::Collective, Some(collective)) => collective.label(),
                (WaitKind::Collective, None) => "collective".to_owned(),
                _ => what,
            };
            let label = self.facts().names.intern(&what);
            Wait { kind, label }
        });
        self.waits.insert((sample.stack, context), found);
        found
    }

    fn collective(&mut self, sample: &ProfileSample) -> Option<CollectiveId> {
        let stack = sample.stack?;
        if let Some(&known) = self.collectives.get(&(stack, sample.activity)) {
            return known;
        }
        let part = self.finder.inner(Some(stack)).collective;
        let found = collectives::collective(part, sample.activity)
            .map(|found| self.facts().collectives.intern(&found));
        self.collectives.insert((stack, sample.activity), found);
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
