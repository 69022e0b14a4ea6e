//! From a recording to a profile: names and categories.
//!
//! Every name is looked up once per frame, what a stack says is found once per stack, and what depends on its thread's state once per
//! stack and state; a sample costs a few look-ups. That is what keeps a ten-minute recording under two seconds.

mod batch_lines;
mod classes;
mod frames;
mod sample_facts;
mod stack_facts;
mod stitching;
mod time_axis;

use crate::model::code::CodeInfo;
use crate::model::facts::Facts;
use crate::model::frame::Frame;
use crate::model::ids::ModuleId;
use crate::model::lane::Lanes;
use crate::model::module::{ModuleInfo, SymbolInfo};
use crate::model::nn_module::NnModuleInfo;
use crate::model::process::{ProcessInfo, ThreadInfo};
use crate::model::profile::{Profile, ProfileProcess, ProfileSample};
use crate::model::progress::{Condition, CounterInfo, ProgressPoint};
use crate::model::quality::Quality;
use crate::model::run::{ClockPair, Loss, RunInfo};
use crate::model::sample::Sample;
use crate::model::stack_table::StackTable;
use crate::recording::Recording;
use crate::torch::role::{ThreadFacts, roles, training_thread};
use classes::Classifier;
use frames::Frames;

/// How symbols become names for people.
#[derive(Clone, Copy)]
pub struct Names {
    /// Demangles a symbol; gives back what it cannot demangle.
    pub demangle: fn(&str) -> String,
    /// Shortens a demangled name for reading.
    pub shorten: fn(&str) -> String,
}

/// Finds the symbol of an address: (module, the address to look up).
pub type SymbolLookup<'a> = dyn Fn(ModuleId, u64) -> Option<&'a SymbolInfo> + 'a;

/// What a recording holds, as resolving needs it.
#[derive(Clone, Copy)]
pub struct ResolveInput<'a> {
    /// The head.
    pub run: &'a RunInfo,
    /// Processes by id.
    pub processes: &'a [ProcessInfo],
    /// Threads by id.
    pub threads: &'a [ThreadInfo],
    /// Modules by id.
    pub modules: &'a [ModuleInfo],
    /// Code objects by id.
    pub codes: &'a [CodeInfo],
    /// `nn.Module`s by id.
    pub nn_modules: &'a [NnModuleInfo],
    /// Counters of progress by id.
    pub counters: &'a [CounterInfo],
    /// Their readings, by time.
    pub points: &'a [ProgressPoint],
    /// Conditions.
    pub conditions: &'a [Condition],
    /// Lanes of devices and processes.
    pub lanes: &'a Lanes,
    /// Raw frames and stacks.
    pub stacks: &'a StackTable<Frame>,
    /// Samples, by thread and start.
    pub samples: &'a [Sample],
    /// The sampler's figures.
    pub quality: &'a Quality,
    /// Clock pairs.
    pub clocks: &'a [ClockPair],
    /// What was lost while recording.
    pub losses: &'a [Loss],
    /// What is missing of the file.
    pub missing: &'a [String],
    /// First and last moment sampled.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// Symbols.
    pub symbols: &'a SymbolLookup<'a>,
}

/// Names and classifies what a recording in memory holds.
pub fn resolve_recording(recording: &Recording, names: Names) -> Profile {
    let input = ResolveInput {
        run: &recording.run,
        processes: &recording.processes,
        threads: &recording.threads,
        modules: &recording.modules,
        codes: &recording.codes,
        nn_modules: &recording.nn_modules,
        counters: &recording.counters,
        points: &recording.points,
        conditions: &recording.conditions,
        lanes: &recording.lanes,
        stacks: &recording.stacks,
        samples: &recording.samples,
        quality: &recording.quality,
        clocks: &recording.clocks,
        losses: &recording.losses,
        missing: &recording.missing,
        start_ns: recording.start_ns,
        end_ns: recording.end_ns,
        symbols: &|module, address| recording.symbols.lookup(module, address),
    };
    resolve(&input, names)
}

/// Names and classifies everything in a recording. Ids that point nowhere are treated as not read.
pub fn resolve(input: &ResolveInput<'_>, names: Names) -> Profile {
    let frames = Frames::resolve(input, names);
    let mut profile = Profile {
        run: input.run.clone(),
        start_ns: input.start_ns,
        end_ns: input.end_ns,
        missing: input.missing.to_vec(),
        processes: Vec::new(),
        threads: input.threads.to_vec(),
        thread_cpu_ns: cpu_by_thread(input),
        functions: frames.functions,
        nn_modules: input.nn_modules.to_vec(),
        counters: input.counters.to_vec(),
        points: input.points.to_vec(),
        conditions: input.conditions.to_vec(),
        lanes: input.lanes.clone(),
        stacks: frames.stacks,
        facts: Facts::default(),
        samples: Vec::new(),
        quality: input.quality.clone(),
        clocks: input.clocks.to_vec(),
        losses: input.losses.to_vec(),
    };
    let mut classifier =
        Classifier::new(&frames.classes, &profile.functions, &profile.stacks, input);
    let facts = classifier.facts(&frames.mapped);
    let roles = roles(input.processes, &facts.processes, input.run.pid);
    let processes: Vec<ProfileProcess> = input
        .processes
        .iter()
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
                training_thread: training_thread(&own),
            }
        })
        .collect();
    let samples = classifier.samples(&frames.mapped, &processes);
    profile.processes = processes;
    profile.samples = time_axis::lay_out(samples);
    stitching::stitch(&mut profile, &frames.classes);
    sample_facts::find(&mut profile);
    profile
}

fn cpu_by_thread(input: &ResolveInput<'_>) -> Vec<u64> {
    let mut cpu = vec![0_u64; input.threads.len()];
    for sample in input.samples {
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
