//! Conditions of the run, in one or two lines.

use super::format::{count, printable};
use super::wrapped;
use crate::analysis::conditions::{Conditions, conditions};
use crate::analysis::summary::ProcessSummary;
use crate::model::profile::Profile;

pub(super) fn line(out: &mut String, profile: &Profile, process: &ProcessSummary) {
    let conditions = conditions(profile, process);
    let facts = facts(&conditions);
    if !facts.is_empty() {
        wrapped(out, &facts, "| ");
    }
}

fn facts(conditions: &Conditions) -> Vec<String> {
    let mut facts = Vec::new();
    let text = |text: &Option<String>| text.as_deref().map(|text| printable(text).into_owned());
    let mut model: Vec<String> = Vec::new();
    model.extend(
        conditions
            .batch_size
            .map(|size| format!("batch {}", count(size))),
    );
    model.extend(text(&conditions.parameter_dtype));
    model.extend(text(&conditions.autocast).map(|element| format!("autocast {element}")));
    model.extend(text(&conditions.optimizer));
    model.extend(conditions.mode.map(|mode| mode.name().to_owned()));
    if !model.is_empty() {
        facts.push(model.join(" "));
    }
    let mut loader: Vec<String> = Vec::new();
    loader.extend(
        conditions
            .workers
            .map(|workers| format!("workers {}", count(workers))),
    );
    loader.extend(conditions.pin_memory.map(|pinned| match pinned {
        true => "pin_memory on".to_owned(),
        false => "pin_memory off".to_owned(),
    }));
    loader.extend(
        conditions
            .prefetch
            .map(|batches| format!("prefetch {}", count(batches))),
    );
    if !loader.is_empty() {
        facts.push(format!("DataLoader {}", loader.join(", ")));
    }
    facts.extend(
        conditions
            .cpu_quota
            .map(|cpus| format!("cgroup {cpus} CPUs")),
    );
    facts.extend(conditions.affinity_cpus.map(|cpus| match cpus {
        1 => "1 CPU allowed".to_owned(),
        cpus => format!("{} CPUs allowed", count(cpus)),
    }));
    facts.extend(
        conditions
            .omp_num_threads
            .map(|threads| format!("OMP_NUM_THREADS {threads}")),
    );
    facts.extend(text(&conditions.torch_cuda).map(|version| format!("built for CUDA {version}")));
    facts
}
