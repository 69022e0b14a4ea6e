//! A row per stack of the samples: its number, and its frames from the root to the leaf as a list
//! of structs. A list keeps the parts of a frame separate, and DuckDB unnests and pandas explodes
//! it; folded text would have to be split at characters that names may contain.

use super::columns::{text, text_type, values};
use super::{BATCH, write};
use crate::model::category::FrameKind;
use crate::model::ids::StackId;
use crate::model::profile::{Profile, ProfileFrame};
use arrow_array::builder::Int32Builder;
use arrow_array::{ArrayRef, ListArray, RecordBatch, StringArray, StructArray, UInt32Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use parquet::errors::ParquetError;
use std::io::{self, Write};
use std::sync::Arc;

/// Number of frames that are in memory as columns at a time.
const BATCH_FRAMES: usize = 16 * BATCH;

/// Values of the columns, by number.
struct Values {
    /// Functions, then modules.
    functions: Arc<StringArray>,
    files: Arc<StringArray>,
    kinds: Arc<StringArray>,
}

/// Writes the stacks of a profile's samples.
///
/// # Errors
/// Where `out` cannot be written.
pub fn render(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let modules = profile.nn_modules.iter().map(|module| module.label());
    let functions = profile.functions.iter().map(|each| each.name.clone());
    let files = profile.functions.iter().map(|function| &function.file);
    let all = Values {
        functions: values(functions.chain(modules)),
        files: values(files),
        kinds: values(FrameKind::ALL.iter().map(|kind| kind.name())),
    };
    let mut used = vec![false; profile.stacks.stacks().len()];
    for stack in profile.samples.iter().filter_map(|sample| sample.stack) {
        if let Some(used) = used.get_mut(stack.index()) {
            *used = true;
        }
    }
    let used = used.into_iter().enumerate().filter(|(_, used)| *used);
    let mut rest = used.map(|(at, _)| StackId::from_index(at)).peekable();
    let batches = std::iter::from_fn(|| {
        rest.peek()?;
        let mut batch = Batch::default();
        while batch.stacks.len() < BATCH
            && batch.frames.len() < BATCH_FRAMES
            && let Some(stack) = rest.next()
        {
            batch.add(profile, stack);
        }
        Some(batch.finish(profile, &all).map_err(ParquetError::from))
    });
    let empty = RecordBatch::new_empty(schema());
    write(profile, "stacks", batches, empty, out)
}

fn frame_fields() -> Fields {
    Fields::from(vec![
        Field::new("function", text_type(), false),
        Field::new("file", text_type(), true),
        Field::new("line", DataType::Int32, true),
        Field::new("kind", text_type(), false),
    ])
}

fn frame_field() -> Field {
    Field::new("item", DataType::Struct(frame_fields()), false)
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("stack_id", DataType::UInt32, false),
        Field::new("frames", DataType::List(Arc::new(frame_field())), false),
    ]))
}

#[derive(Default)]
struct Batch {
    stacks: Vec<u32>,
    depths: Vec<usize>,
    frames: Vec<ProfileFrame>,
}

impl Batch {
    fn add(&mut self, profile: &Profile, stack: StackId) {
        let frames = profile.stacks.root_to_leaf(Some(stack));
        self.stacks.push(stack.0);
        self.depths.push(frames.len());
        let frames = frames.into_iter().map(|frame| *profile.stacks.frame(frame));
        self.frames.extend(frames);
    }

    fn finish(self, profile: &Profile, all: &Values) -> Result<RecordBatch, ArrowError> {
        let frames = &self.frames;
        let function = |frame: &ProfileFrame| profile.function(frame.function);
        let names = frames.iter().map(|frame| {
            Some(match frame.nn_module {
                Some(module) => profile.functions.len() + module.index(),
                None => frame.function.index(),
            })
        });
        let files = frames.iter().map(|frame| {
            let has_file = function(frame).is_some_and(|function| !function.file.is_empty());
            has_file.then_some(frame.function.index())
        });
        let kinds = frames.iter().map(|frame| {
            let kind = function(frame).map_or(FrameKind::Marker, |function| function.kind);
            Some(kind as usize)
        });
        let mut lines = Int32Builder::with_capacity(frames.len());
        for frame in frames {
            let line = i32::try_from(frame.line).ok();
            lines.append_option(line.filter(|line| *line != 0));
        }
        let columns: Vec<ArrayRef> = vec![
            text(names, &all.functions)?,
            text(files, &all.files)?,
            Arc::new(lines.finish()),
            text(kinds, &all.kinds)?,
        ];
        let frames = StructArray::try_new(frame_fields(), columns, None)?;
        let lists = ListArray::try_new(
            Arc::new(frame_field()),
            OffsetBuffer::from_lengths(self.depths),
            Arc::new(frames),
            None,
        )?;
        let ids = UInt32Array::from(self.stacks);
        RecordBatch::try_new(schema(), vec![Arc::new(ids), Arc::new(lists)])
    }
}
