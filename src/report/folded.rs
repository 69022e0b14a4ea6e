//! Folded stacks: `root;frame;frame count`, one line per distinct stack, the format of
//! `flamegraph.pl`, inferno and py-spy's raw output. The first frame is the thread, so that no tool
//! adds up two threads by accident.

use super::label::{self, LONG};
use super::view::{Root, Shown, View, ViewOptions};
use crate::model::profile::Profile;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// Sampler ticks, as py-spy counts samples. A late tick counts once.
    #[default]
    Ticks,
    /// Microseconds, rounded down: late ticks weigh their true length.
    Microseconds,
}

/// How py-spy writes its raw format; without processes and threads a stack begins with its first
/// function (py-spy 0.4, `record_samples`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PySpyForm {
    /// `process PID:"COMMAND"` of the process and all that started it, as with `-s`.
    pub processes: bool,
    /// `thread (TID): NAME`, as with `-t`.
    pub threads: bool,
    /// Paths of Python files as they are.
    pub full_filenames: bool,
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
    /// Stacks exactly as py-spy writes them, not in the strict form.
    pub py_spy: Option<PySpyForm>,
    pub count: Count,
}

/// Writes `profile` as folded stacks, sorted.
pub fn render(profile: &Profile, options: &FoldedOptions, out: &mut dyn Write) -> io::Result<()> {
    // py-spy shortens paths in its own way.
    let view = View::new(
        profile,
        &ViewOptions {
            full_files: options.view.full_files || options.py_spy.is_some(),
            ..options.view.clone()
        },
    );
    let mut files = FxHashMap::<String, String>::default();
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
        let root = &view.roots()[root];
        let mut line = match options.py_spy {
            Some(roots) => py_spy_roots(profile, root, roots),
            None => root_frame(root, options.python_only),
        };
        let mut frames = view.frames(stack, queued);
        if options.py_spy.is_some() {
            // What py-spy does not have: named blocks, and waits for a CPU.
            frames.retain(|frame| {
                let function = view.function(frame.shown);
                frame.shown != Shown::CpuWait && function.is_none_or(|function| !function.is_region)
            });
        }
        if options.python_only {
            frames.retain(|frame| {
                view.function(frame.shown)
                    .is_some_and(|function| function.is_python)
            });
            if frames.is_empty() && options.py_spy.is_some() {
                continue;
            }
            if frames.is_empty() {
                line.push_str(";[native] (no_python_frames:0)");
            }
        }
        for frame in frames {
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&match options.py_spy {
                Some(form) => py_spy_frame(&view, frame.shown, form, &mut files),
                None => frame_text(&view, frame.shown, options.python_only),
            });
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

/// Processes from the first one on, and the thread.
fn py_spy_roots(profile: &Profile, root: &Root, shown: PySpyForm) -> String {
    let mut frames = Vec::new();
    let mut pid = root.pid;
    // A process is its parent's only once.
    for _ in 0..profile.processes.len() {
        let found = profile.processes.iter().find(|each| each.info.pid == pid);
        let Some(process) = found.filter(|_| shown.processes) else {
            break;
        };
        let command = process.info.command.join(" ");
        frames.push(without_separators(&format!("process {pid}:\"{command}\"")));
        pid = process.info.parent_pid;
    }
    frames.reverse();
    if shown.threads {
        let name = root.label.rsplit(" · ").next().unwrap_or_default();
        let name = name.split(" (tid ").next().unwrap_or_default();
        frames.push(without_separators(&format!(
            "thread ({}): {name}",
            root.tid
        )));
    }
    frames.join(";")
}

fn py_spy_frame(
    view: &View<'_>,
    shown: Shown,
    form: PySpyForm,
    files: &mut FxHashMap<String, String>,
) -> String {
    let (Some(function), Shown::Code { line, .. }) = (view.function(shown), shown) else {
        return frame_text(view, shown, false);
    };
    if !function.is_python {
        return frame_text(view, shown, false);
    }
    let file = label::clean(view.file(function), LONG);
    let file = match form.full_filenames {
        true => &file,
        false => files
            .entry(file)
            .or_insert_with_key(|file| without_packages_folder(file).to_owned()),
    };
    let name = label::clean(&function.name, LONG);
    without_separators(&match line {
        0 => format!("{name} ({file})"),
        line => format!("{name} ({file}:{line})"),
    })
}

/// A path from its outermost package on, as py-spy shortens it: a folder is a package if it has an
/// `__init__.py` (py-spy 0.4, `shorten_filename`).
pub(crate) fn without_packages_folder(file: &str) -> &str {
    let mut folder = Path::new(file);
    while let Some(parent) = folder.parent() {
        folder = parent;
        if !parent.join("__init__.py").exists() {
            break;
        }
    }
    let rest = Path::new(file).strip_prefix(folder).ok();
    rest.and_then(Path::to_str).unwrap_or(file)
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
