//! Steps, phases and waits of training threads as intervals, for viewers of traces.

use super::label::{self, SHORT};
use super::view::{Root, View};
use crate::analysis::of_thread;
use crate::analysis::progress::{Step, steps};
use crate::model::profile::ProfileSample;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Step,
    Phase,
    Wait,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Step, Self::Phase, Self::Wait];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Step => "steps",
            Self::Phase => "phases",
            Self::Wait => "waits",
        }
    }
}

/// An interval of a thread's time, CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) name: String,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// The intervals of a kind of one training thread, by start; they do not overlap.
pub(super) fn of(view: &View<'_>, root: &Root, kind: Kind) -> Vec<Marker> {
    let profile = view.profile();
    if kind == Kind::Step {
        let steps = steps(profile, root.process).into_iter();
        let marker = |step: Step| Marker {
            name: format!("step {}", step.number),
            start_ns: step.start_ns.max(profile.start_ns),
            end_ns: step.end_ns,
        };
        return steps.map(marker).collect();
    }
    let name = |sample: &ProfileSample| match kind {
        Kind::Phase => Some(profile.phase_name(sample.phase)),
        _ => Some(profile.facts.names.get(sample.wait?.label)),
    };
    let mut found: Vec<Marker> = Vec::new();
    for sample in of_thread(profile, root.thread) {
        let Some(name) = name(sample) else { continue };
        let end_ns = sample.start_ns.saturating_add(sample.weight_ns);
        match found.last_mut() {
            Some(last) if last.end_ns == sample.start_ns && last.name == name => {
                last.end_ns = end_ns;
            }
            _ => found.push(Marker {
                name: label::clean(name, SHORT),
                start_ns: sample.start_ns,
                end_ns,
            }),
        }
    }
    found
}
