//! Folded stacks: `root;frame;frame count`, one line per distinct stack, the format of
//! `flamegraph.pl`, inferno and py-spy's raw output. The first frame is the thread, so that no tool
//! adds up two threads by accident.

use super::label::{self, LONG};
use super::view::{Root, Shown, View, ViewOptions};
use crate::model::profile::Profile;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// Sampler ticks, as py-spy counts samples. A late tick counts once.
    #[default]
    Ticks,
    /// Microseconds, rounded down: late ticks weigh their true length.
    Microseconds,
}

/// How stacks are folded.
#[derive(Clone, Debug, Default)]
pub struct FoldedOptions {
    /// Which threads and frames are written.
    pub view: ViewOptions,
    /// Only Python frames, each strictly `func (file:line)`, and the first one `process
    /// PID:"thread"`, as in py-spy's raw format: for tools that parse it, such as itwinai
    /// (`([^\s]+) \(([^():]+):(\d+)\)`).
    pub python_only: bool,
    pub count: Count,
}

/// Writes `profile` as folded stacks, sorted.
pub fn render(profile: &Profile, options: &FoldedOptions, out: &mut dyn Write) -> io::Result<()> {
    let view = View::new(profile, &options.view);
    let mut sums = FxHashMap::<_, u64>::default();
    for interval in view.intervals() {
        let amount = match options.count {
            Count::Ticks => u64::from(interval.ticks),
            Count::Microseconds => interval.weight_ns,
        };
        let sum = sums
            .entry((interval.root, interval.stack, interval.queued))
            .or_default();
        *sum = u64::saturating_add(*sum, amount);
    }
    let mut lines = BTreeMap::<String, u64>::new();
    for ((root, stack, queued), amount) in sums {
        let mut line = root_frame(&view.roots()[root], options.python_only);
        let mut frames = view.frames(stack, queued);
        if options.python_only {
            frames.retain(|frame| {
                view.function(frame.shown)
                    .is_some_and(|function| function.is_python)
            });
            if frames.is_empty() {
                line.push_str(";[native] (no_python_frames:0)");
            }
        }
        for frame in frames {
            line.push(';');
            line.push_str(&frame_text(&view, frame.shown, options.python_only));
        }
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(amount);
    }
    for (line, amount) in lines {
        let count = if options.count == Count::Microseconds {
            amount / 1000
        } else {
            amount
        };
        if count > 0 {
            writeln!(out, "{line} {count}")?;
        }
    }
    Ok(())
}

fn root_frame(root: &Root, python_only: bool) -> String {
    if python_only {
        return format!(
            "process {}:\"{}\"",
            root.pid,
            without_separators(&root.label).replace('"', "'")
        );
    }
    without_separators(&root.label)
}

fn frame_text(view: &View<'_>, shown: Shown, python_only: bool) -> String {
    let (Some(function), Shown::Code { line, .. }) = (view.function(shown), shown) else {
        return without_separators(&view.label(shown));
    };
    let name = label::clean(&function.name, LONG);
    let file = label::clean(view.file(function), LONG);
    if python_only {
        let name: String = name
            .chars()
            .map(|c| {
                if c.is_whitespace() || c == ';' {
                    '_'
                } else {
                    c
                }
            })
            .collect();
        let file: String = file
            .chars()
            .map(|c| {
                if matches!(c, '(' | ')' | ':' | ';') {
                    '_'
                } else {
                    c
                }
            })
            .collect();
        let name = if name.is_empty() { "?" } else { &name };
        let file = if file.is_empty() { "?" } else { &file };
        return format!("{name} ({file}:{line})");
    }
    if function.is_python {
        return without_separators(&match line {
            0 => format!("{name} ({file})"),
            line => format!("{name} ({file}:{line})"),
        });
    }
    match label::file_name(&file) {
        "" => without_separators(&name),
        module => without_separators(&format!("{name} ({module})")),
    }
}

/// A semicolon separates frames, so it is replaced.
fn without_separators(text: &str) -> String {
    text.replace(';', ":")
}
