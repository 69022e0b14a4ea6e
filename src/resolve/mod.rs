//! From a recording to a profile: names and categories.
//!
//! Every name is looked up once per frame, facts about a stack are determined once per stack, and
//! facts that depend on its thread's state once per stack and state; a sample costs a few look-ups.
//! That keeps a ten-minute recording below two seconds.

mod batch_lines;
mod classes;
pub mod confidential;
mod frames;
mod profiled;
mod sample_facts;
mod stack_facts;
mod stitching;
mod time_axis;

use crate::model::category::Phase;
use crate::model::facts::Facts;
use crate::model::ids::ThreadId;
use crate::model::profile::{AddedRules, Profile, ProfileProcess, ProfileSample, Role};
use crate::recording::Recording;
use crate::torch::job::job_key;
use crate::torch::role::{ThreadFacts, roles, training_thread};
use crate::torch::rules::RuleSet;
use classes::Classifier;
use frames::Frames;

/// How symbols become readable names.
#[derive(Clone, Copy)]
pub struct Names {
    /// Demangles a symbol; returns it unchanged if that fails.
    pub demangle: fn(&str) -> String,
    /// Shortens a demangled name for reading.
    pub shorten: fn(&str) -> String,
    /// What functions and threads are.
    pub rules: &'static RuleSet,
}

/// The samples that a profile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    All,
    /// Those of trainers, without those of threads of communication that run no Python: what a
    /// reduction needs. Such threads have most of the samples of a rank.
    OfRanks,
}

/// Names and classifies everything in a recording.
pub fn resolve(recording: &Recording, names: Names) -> Profile {
    resolve_with(recording, names, Samples::All)
}

/// The same, with the samples that are asked for.
pub fn resolve_with(recording: &Recording, names: Names, kept: Samples) -> Profile {
    let tables = &recording.tables;
    let frames = Frames::resolve(recording, names);
    let mut classifier = Classifier::new(&frames, recording, names.rules);
    let facts = classifier.facts();
    let roles = roles(&tables.processes, &facts.processes, recording.run.pid);
    let processes: Vec<ProfileProcess> = (tables.processes.iter())
        .zip(roles)
        .enumerate()
        .map(|(index, (info, role))| {
            let own: Vec<ThreadFacts> = facts
                .threads
                .iter()
                .filter(|(process, _)| process.index() == index)
                .map(|(_, thread)| *thread)
                .collect();
            ProfileProcess {
                info: info.clone(),
                role,
                job: job_key(&info.environment),
                training_thread: training_thread(&own),
            }
        })
        .collect();
    let of_threads = tables.threads.values().zip(&facts.threads);
    let dropped: Vec<bool> = of_threads
        .map(|(thread, (process, facts))| {
            let process = processes.get(process.index());
            let is_trainer = process.is_some_and(|it| matches!(it.role, Role::Trainer { .. }));
            let phase = names.rules.thread_phase(&thread.name);
            let communicates = phase == Some(Phase::Communication);
            kept == Samples::OfRanks && (!is_trainer || communicates && !facts.is_python)
        })
        .collect();
    let is_kept = |thread: ThreadId| dropped.get(thread.index()) != Some(&true);
    let samples = recording.samples.iter();
    let count = samples.filter(|sample| is_kept(sample.thread)).count();
    let samples = time_axis::lay_out(classifier.samples(&processes, is_kept), count);
    let mut profile = Profile {
        run: recording.run.clone(),
        start_ns: recording.start_ns,
        end_ns: recording.end_ns,
        whole_ns: None,
        left_out_steps: Vec::new(),
        step_changes: Vec::new(),
        profiled: Vec::new(),
        growing_until_ns: recording.growing.then_some(recording.end_ns),
        is_confidential: false,
        missing: recording.missing.clone(),
        gaps: recording.gaps.clone(),
        processes,
        threads: tables.threads.values().cloned().collect(),
        thread_cpu_ns: cpu_by_thread(recording),
        functions: frames.functions,
        nn_modules: tables.nn_modules.to_vec(),
        counters: tables.counters.to_vec(),
        stacks: frames.stacks,
        facts: Facts::default(),
        samples,
        sideband: recording.sideband.clone(),
        added_rules: (names.rules.added > 0).then_some(AddedRules {
            rows: names.rules.added,
            functions: frames.added,
        }),
    };
    if let Some(AddedRules { rows, functions }) = profile.added_rules {
        let note =
            format!("additional rules (--rules): {rows}, which matched {functions} functions");
        profile.run.notes.push(note);
    }
    profile.profiled = profiled::windows(&profile);
    stitching::stitch(&mut profile, &frames.classes, names.rules);
    sample_facts::find(&mut profile, &frames.first, names.rules);
    profile
}

fn cpu_by_thread(recording: &Recording) -> Vec<u64> {
    let mut cpu = vec![0_u64; recording.tables.threads.len()];
    for sample in &recording.samples {
        if let Some(total) = cpu.get_mut(sample.thread.index()) {
            *total = total.saturating_add(sample.run_ns);
        }
    }
    cpu
}

/// The samples of each thread, as ranges of a list that is sorted by thread.
pub(crate) fn by_thread(samples: &[ProfileSample]) -> impl Iterator<Item = &[ProfileSample]> {
    samples.chunk_by(|left, right| left.thread == right.thread)
}
