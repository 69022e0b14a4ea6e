//! A row per sample. Weights of a thread's rows add up to its wall time.

use super::columns::{text, text_type, values};
use super::{BATCH, write};
use crate::analysis::gpu_overlay::{device_of, served};
use crate::analysis::progress::{Step, epochs, steps};
use crate::analysis::tracks::{Span, TrackSummary, spans, summarize};
use crate::model::category::{Activity, Phase, SummaryRow};
use crate::model::facts::{Facts, StackFacts};
use crate::model::ids::{ProcessId, StackId};
use crate::model::profile::{Profile, ProfileProcess, ProfileSample, Role};
use crate::model::sample::ThreadState;
use crate::model::track::TrackKind;
use crate::model::wait::WaitKind;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampNanosecondArray, UInt32Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::errors::ParquetError;
use std::io::{self, Write};
use std::sync::Arc;

/// Writes the samples of a profile.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let tracks = summarize(profile);
    let ids = (0..profile.processes.len()).map(ProcessId::from_index);
    let table = Table {
        profile,
        facts: &profile.facts,
        processes: ids.map(|id| Process::of(profile, &tracks, id)).collect(),
        texts: Texts::of(profile),
        schema: schema(),
    };
    let chunks = profile.samples.chunks(BATCH);
    let batches = chunks.map(|samples| table.batch(samples).map_err(ParquetError::from));
    let empty = RecordBatch::new_empty(schema());
    write(profile, "samples", batches, empty, out)
}

fn schema() -> SchemaRef {
    let utc = || DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    let fields = [
        ("rank", DataType::UInt32, true),
        ("pid", DataType::Int32, true),
        ("role", text_type(), true),
        ("tid", DataType::Int32, true),
        ("thread", text_type(), true),
        ("is_training_thread", DataType::Boolean, false),
        ("start_ns", DataType::Int64, false),
        ("start", utc(), true),
        ("weight_ns", DataType::Int64, false),
        ("queue_ns", DataType::Int64, false),
        ("ticks", DataType::UInt32, false),
        ("state", text_type(), true),
        ("phase", text_type(), true),
        ("activity", text_type(), true),
        ("summary_row", text_type(), true),
        ("operator", text_type(), true),
        ("node", text_type(), true),
        ("module", text_type(), true),
        ("wait", text_type(), true),
        ("wait_for", text_type(), true),
        ("collective", text_type(), true),
        ("user_file", text_type(), true),
        ("user_line", DataType::Int32, true),
        ("leaf", text_type(), true),
        ("step", DataType::Int64, true),
        ("epoch", DataType::Int64, true),
        ("gpu_busy_percent", DataType::Float64, true),
        ("stack_id", DataType::UInt32, true),
    ];
    let fields = fields.map(|(name, kind, nullable)| Field::new(name, kind, nullable));
    Arc::new(Schema::new(fields.to_vec()))
}

/// Values that are equal for all samples of a process.
struct Process {
    role: Role,
    /// Steps of the process itself, or of the trainer that it loads data for.
    steps: Vec<Step>,
    epochs: Vec<(u64, u64)>,
    busy: Vec<Span>,
}

impl Process {
    fn of(profile: &Profile, tracks: &TrackSummary, id: ProcessId) -> Self {
        let trainer = served(profile, id);
        let utilization = device_of(tracks, trainer)
            .ok()
            .and_then(|device| device.figure(TrackKind::Utilization));
        let role = profile.process(id);
        Self {
            role: role.map_or(Role::Other, |process| process.role),
            steps: steps(profile, trainer),
            epochs: epochs(profile, trainer)
                .iter()
                .map(|pass| (pass.start_ns, pass.end_ns))
                .collect(),
            busy: utilization.map_or(Vec::new(), |figure| spans(profile, figure.track)),
        }
    }

    /// The number of the step in the recording, from 1.
    fn step(&self, at_ns: u64) -> Option<i64> {
        let next = self.steps.partition_point(|step| step.end_ns <= at_ns);
        let step = self.steps.get(next).filter(|step| step.start_ns <= at_ns)?;
        i64::try_from(step.number).ok()
    }

    /// The number of the epoch, from 1, among those that are complete in the recording.
    fn epoch(&self, at_ns: u64) -> Option<i64> {
        let next = self.epochs.partition_point(|(_, end_ns)| *end_ns <= at_ns);
        let (start_ns, _) = self.epochs.get(next)?;
        (*start_ns <= at_ns).then_some(next as i64 + 1)
    }

    fn busy_percent(&self, at_ns: u64) -> Option<f64> {
        let next = self.busy.partition_point(|span| span.end_ns <= at_ns);
        let span = self.busy.get(next).filter(|span| span.start_ns <= at_ns)?;
        Some(span.value * 100.0)
    }
}

/// Values of the columns of strings, by number.
struct Texts {
    roles: Arc<StringArray>,
    threads: Arc<StringArray>,
    states: Arc<StringArray>,
    phases: Arc<StringArray>,
    activities: Arc<StringArray>,
    rows: Arc<StringArray>,
    names: Arc<StringArray>,
    modules: Arc<StringArray>,
    waits: Arc<StringArray>,
    collectives: Arc<StringArray>,
    files: Arc<StringArray>,
    functions: Arc<StringArray>,
}

impl Texts {
    fn of(profile: &Profile) -> Self {
        let facts = &profile.facts;
        Self {
            roles: values(Role::NAMES),
            threads: values(profile.threads.iter().map(|thread| &thread.name)),
            states: values(ThreadState::ALL.iter().map(|state| state.name())),
            phases: values(Phase::ALL.iter().map(|&phase| profile.phase_name(phase))),
            activities: values(Activity::ALL.iter().map(|activity| activity.name())),
            rows: values(SummaryRow::ALL.iter().map(|row| row.name())),
            names: values(facts.names.all()),
            modules: values(profile.nn_modules.iter().map(|module| module.label())),
            waits: values(WaitKind::ALL.iter().map(|kind| kind.name())),
            collectives: values(facts.collectives.iter().map(|each| each.label())),
            files: values(profile.functions.iter().map(|function| &function.file)),
            functions: values(profile.functions.iter().map(|each| &each.short_name)),
        }
    }
}

struct Table<'p> {
    profile: &'p Profile,
    facts: &'p Facts,
    processes: Vec<Process>,
    texts: Texts,
    schema: SchemaRef,
}

impl<'p> Table<'p> {
    fn batch(&self, samples: &[ProfileSample]) -> Result<RecordBatch, ArrowError> {
        let mut columns = self.thread_columns(samples)?;
        columns.extend(self.time_columns(samples)?);
        columns.extend(self.state_columns(samples)?);
        columns.extend(self.stack_columns(samples)?);
        columns.extend(self.window_columns(samples));
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }

    fn process(&self, sample: &ProfileSample) -> Option<(&'p ProfileProcess, &Process)> {
        let thread = self.profile.thread(sample.thread)?;
        let at = thread.process.index();
        Some((self.profile.processes.get(at)?, self.processes.get(at)?))
    }

    fn thread_columns(&self, samples: &[ProfileSample]) -> Result<Vec<ArrayRef>, ArrowError> {
        let each = || samples.iter().map(|sample| self.process(sample));
        let threads = samples.iter().map(|sample| sample.thread.index());
        let tid = |sample: &ProfileSample| {
            let thread = self.profile.thread(sample.thread);
            thread.map(|thread| thread.tid)
        };
        let trains = samples.iter().map(|sample| {
            let process = self.process(sample);
            process.is_some_and(|(process, _)| process.training_thread == Some(sample.thread))
        });
        let ranks: UInt32Array = each().map(|process| process?.1.role.rank()).collect();
        let pids: Int32Array = each().map(|process| Some(process?.0.info.pid)).collect();
        let roles = each().map(|process| Some(process?.1.role.number()));
        Ok(vec![
            Arc::new(ranks),
            Arc::new(pids),
            text(roles, &self.texts.roles)?,
            Arc::new(samples.iter().map(tid).collect::<Int32Array>()),
            text(threads.map(Some), &self.texts.threads)?,
            Arc::new(trains.map(Some).collect::<BooleanArray>()),
        ])
    }

    fn time_columns(&self, samples: &[ProfileSample]) -> Result<Vec<ArrayRef>, ArrowError> {
        let ns = |of: fn(&ProfileSample) -> u64| {
            let column = samples.iter().map(of);
            let column = column.map(|ns| i64::try_from(ns).unwrap_or(i64::MAX));
            Arc::new(Int64Array::from_iter_values(column))
        };
        let walls = samples
            .iter()
            .map(|sample| self.profile.wall_ns(sample.start_ns));
        let walls: TimestampNanosecondArray = walls.collect();
        let ticks = samples.iter().map(|sample| sample.ticks);
        Ok(vec![
            ns(|sample| sample.start_ns),
            Arc::new(walls.with_timezone("UTC")),
            ns(|sample| sample.weight_ns),
            ns(|sample| sample.queue_ns.min(sample.weight_ns)),
            Arc::new(UInt32Array::from_iter_values(ticks)),
        ])
    }

    fn state_columns(&self, samples: &[ProfileSample]) -> Result<Vec<ArrayRef>, ArrowError> {
        let texts = &self.texts;
        let column =
            |of: fn(&ProfileSample) -> Option<usize>, values| text(samples.iter().map(of), values);
        Ok(vec![
            column(|sample| Some(sample.state as usize), &texts.states)?,
            column(|sample| Some(sample.phase as usize), &texts.phases)?,
            column(|sample| Some(sample.activity as usize), &texts.activities)?,
            column(|sample| Some(sample.row as usize), &texts.rows)?,
        ])
    }

    fn stack_columns(&self, samples: &[ProfileSample]) -> Result<Vec<ArrayRef>, ArrowError> {
        let (facts, texts) = (self.facts, &self.texts);
        let stacks = || samples.iter().map(|sample| sample.stack);
        let of_stacks = || stacks().map(|stack| facts.of(stack));
        let operators = stacks().map(|stack| Some(facts.own_operator(stack)?.name.index()));
        let nodes = stacks().map(|stack| Some(facts.nodes(stack).next()?.index()));
        let modules = stacks().map(|stack| Some(facts.modules(stack).next()?.index()));
        let waits = || samples.iter().map(|sample| sample.wait);
        let collectives = samples
            .iter()
            .map(|sample| Some(sample.collective?.index()));
        let user = |of_stack: StackFacts| Some(of_stack.user_line?.0.index());
        let lines: Int32Array = of_stacks()
            .map(|of_stack| i32::try_from(of_stack.user_line?.1).ok())
            .collect();
        Ok(vec![
            text(operators, &texts.names)?,
            text(nodes, &texts.names)?,
            text(modules, &texts.modules)?,
            text(waits().map(|wait| Some(wait?.kind as usize)), &texts.waits)?,
            text(waits().map(|wait| Some(wait?.label.index())), &texts.names)?,
            text(collectives, &texts.collectives)?,
            text(of_stacks().map(user), &texts.files)?,
            Arc::new(lines),
            text(stacks().map(|stack| self.leaf(stack)), &texts.functions)?,
        ])
    }

    /// The function at the leaf; `None` for markers.
    fn leaf(&self, stack: Option<StackId>) -> Option<usize> {
        let of_stack = self.facts.of(stack);
        let python = of_stack.python_leaf.map(|(function, _)| function);
        of_stack
            .native_leaf
            .or(python)
            .map(|function| function.index())
    }

    fn window_columns(&self, samples: &[ProfileSample]) -> Vec<ArrayRef> {
        let each = || {
            samples.iter().map(|sample| {
                let middle_ns = sample.start_ns.saturating_add(sample.weight_ns / 2);
                Some((self.process(sample)?.1, middle_ns))
            })
        };
        let steps = each().map(|each| each.and_then(|(process, at_ns)| process.step(at_ns)));
        let epochs = each().map(|each| each.and_then(|(process, at_ns)| process.epoch(at_ns)));
        let busy = each().map(|each| each.and_then(|(process, at)| process.busy_percent(at)));
        let stacks = samples.iter().map(|sample| Some(sample.stack?.0));
        vec![
            Arc::new(steps.collect::<Int64Array>()),
            Arc::new(epochs.collect::<Int64Array>()),
            Arc::new(busy.collect::<Float64Array>()),
            Arc::new(stacks.collect::<UInt32Array>()),
        ]
    }
}
