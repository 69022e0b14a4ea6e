//! speedscope (<https://www.speedscope.app/file-format-schema.json>): one `sampled` profile per
//! thread, in ns.
//!
//! The format has no categories. They are shown in two ways: the outermost frame of every stack is
//! the phase (`[forward]`), which draws a band of phases over time and sums them in the left-heavy
//! view, and a frame's name ends with its kind (`conv2d · aten`). Both can be turned off.
//!
//! All threads share the time axis of the recording. While a thread was not sampled (before it
//! started, in a gap, or in a wait that is not drawn) its profile has an empty stack, which
//! speedscope draws as empty and excludes from its percentages; so the axis has no cuts, and no
//! time is invented.

use super::command::shown_command;
use super::label::{self, LONG, SHORT};
use super::view::{Root, Shown, View, ViewOptions};
use crate::model::category::{FrameKind, Phase};
use crate::model::profile::Profile;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// How a profile is written for speedscope.
#[derive(Clone, Debug)]
pub struct SpeedscopeOptions {
    /// Which threads and frames are written.
    pub view: ViewOptions,
    /// Whether phases are outermost frames, and kinds are part of frame names.
    pub categories: bool,
}

impl Default for SpeedscopeOptions {
    fn default() -> Self {
        Self {
            view: ViewOptions::default(),
            categories: true,
        }
    }
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: Shared<'a>,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: &'a [Frame],
}

#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "is_zero")]
    line: u32,
}

#[derive(Serialize)]
struct Sampled {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(line: &u32) -> bool {
    *line == 0
}

/// Writes `profile` as speedscope JSON. The first profile, which opens first, is the training
/// thread's.
pub fn render(
    profile: &Profile,
    options: &SpeedscopeOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let view = View::new(profile, &options.view);
    let mut frames = Frames {
        categories: options.categories,
        table: Vec::new(),
        known: FxHashMap::default(),
    };
    let profiles = sampled(&view, &mut frames);
    let file = File {
        schema: SCHEMA,
        exporter: format!("torchspy {}", profile.run.torchspy),
        name: name(profile),
        active: 0,
        shared: Shared {
            frames: &frames.table,
        },
        profiles,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

fn sampled(view: &View<'_>, frames: &mut Frames) -> Vec<Sampled> {
    let begin = view.profile().start_ns;
    let end = view.profile().end_ns.saturating_sub(begin);
    let mut profiles: Vec<Sampled> = view.roots().iter().map(|root| empty(root, end)).collect();
    let mut filled = vec![0_u64; profiles.len()];
    let mut stacks = FxHashMap::default();
    for interval in view.intervals() {
        let (profile, filled) = (&mut profiles[interval.root], &mut filled[interval.root]);
        let start = interval.start_ns.saturating_sub(begin);
        profile.push(&[], start.saturating_sub(*filled));
        *filled = (*filled).max(start);
        let key = (interval.stack, interval.queued, interval.phase);
        let stack = stacks.entry(key).or_insert_with(|| frames.stack(view, key));
        profile.push(stack, interval.weight_ns);
        *filled = filled.saturating_add(interval.weight_ns);
    }
    for (profile, filled) in profiles.iter_mut().zip(filled) {
        profile.push(&[], end.saturating_sub(filled));
        profile.end = end.max(filled);
    }
    profiles
}

fn empty(root: &Root, end: u64) -> Sampled {
    Sampled {
        r#type: "sampled",
        name: format!(
            "{} (pid {}, tid {})",
            label::clean(&root.label, SHORT),
            root.pid,
            root.tid
        ),
        unit: "nanoseconds",
        start: 0,
        end,
        samples: Vec::new(),
        weights: Vec::new(),
    }
}

impl Sampled {
    /// Adds an interval; one with the same stack as the last extends it.
    fn push(&mut self, stack: &[usize], weight: u64) {
        if weight == 0 {
            return;
        }
        match (self.samples.last(), self.weights.last_mut()) {
            (Some(last), Some(length)) if last == stack => *length = length.saturating_add(weight),
            _ => {
                self.samples.push(stack.to_vec());
                self.weights.push(weight);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FrameKey {
    Phase(Phase),
    Shown(Shown),
}

/// The shared table of frames.
struct Frames {
    categories: bool,
    table: Vec<Frame>,
    known: FxHashMap<FrameKey, usize>,
}

impl Frames {
    fn stack(
        &mut self,
        view: &View<'_>,
        key: (Option<crate::model::ids::StackId>, bool, Phase),
    ) -> Vec<usize> {
        let (stack, queued, phase) = key;
        let band = self.categories.then_some(FrameKey::Phase(phase));
        let frames = view.frames(stack, queued);
        band.into_iter()
            .chain(frames.into_iter().map(|frame| FrameKey::Shown(frame.shown)))
            .map(|key| self.index(view, key))
            .collect()
    }

    fn index(&mut self, view: &View<'_>, key: FrameKey) -> usize {
        if let Some(&index) = self.known.get(&key) {
            return index;
        }
        let frame = match key {
            FrameKey::Phase(phase) => Frame {
                name: format!("[{}]", view.profile().phase_name(phase)),
                file: String::new(),
                line: 0,
            },
            FrameKey::Shown(shown) => self.frame(view, shown),
        };
        self.table.push(frame);
        self.known.insert(key, self.table.len() - 1);
        self.table.len() - 1
    }

    fn frame(&self, view: &View<'_>, shown: Shown) -> Frame {
        let (Some(function), Shown::Code { line, .. }) = (view.function(shown), shown) else {
            return Frame {
                name: view.label(shown),
                file: String::new(),
                line: 0,
            };
        };
        let mut name = label::clean(function.shown_name(), LONG);
        if self.categories {
            name = format!("{name} · {}", short_kind(function.kind));
        }
        Frame {
            name,
            file: label::clean(view.file(function), LONG),
            line,
        }
    }
}

/// Kinds of Python code without the word that the file's extension already shows.
fn short_kind(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::PythonUser => "your code",
        FrameKind::PythonTorch => "torch",
        FrameKind::PythonLibrary => "library",
        other => other.name(),
    }
}

fn name(profile: &Profile) -> String {
    let command = match profile.run.command.is_empty() {
        true => format!("pid {}", profile.run.pid),
        false => label::clean(&shown_command(&profile.run.command, SHORT), SHORT),
    };
    let duration = label::duration(profile.end_ns.saturating_sub(profile.start_ns));
    format!("{command} · {duration} at {} Hz", profile.run.rate_hz)
}
