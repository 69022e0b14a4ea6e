//! A dump in py-spy's own form, to the byte: for programs that parse it (py-spy 0.4,
//! `src/dump.rs`, `src/stack_trace.rs`).

use crate::model::dump::{DumpedFrame, DumpedProcess, DumpedThread};
use crate::model::py_spy_view::{Frame, PySpyView, StackTrace};
use crate::model::sample::{Gil, ThreadState};
use crate::report::folded::without_packages_folder;
use crate::report::label::{file_name, is_start};
use std::cmp::Reverse;
use std::fmt::Write as _;

/// What heads the dump of a process.
#[derive(Clone, Debug)]
pub struct PySpyHead {
    pub pid: i32,
    pub command: Vec<String>,
    /// The process that started it, if it is shown as a child.
    pub parent: Option<(i32, Vec<String>)>,
}

/// The stacks of a snapshot in place of those of the view where these differ, and with native
/// frames if they are asked for. A process of whose Python frames the snapshot has none (those
/// older than 3.10) keeps the view's.
pub fn with_stacks(view: &mut PySpyView, threads: &[DumpedThread], native: bool) {
    let has_python = |thread: &DumpedThread| thread.frames.iter().any(|frame| frame.is_python);
    if !threads.iter().any(has_python) {
        return;
    }
    for (trace, tid) in view.threads.iter_mut().zip(&view.tids) {
        match threads.iter().find(|each| Some(each.tid) == *tid) {
            Some(it) => merge(trace, it, native),
            // It began after the snapshot, and what was read while it ran is not certain.
            None if trace.active => trace.frames.clear(),
            None => {}
        }
    }
}

/// The view by a snapshot alone, of a Python that py-spy's walker does not read, as one without a
/// GIL: ids of threads are the kernel's, and there are no variables. `None` without Python frames.
pub fn view_of(process: &DumpedProcess, executable: String) -> Option<PySpyView> {
    let is_python = |thread: &&DumpedThread| thread.frames.iter().any(|frame| frame.is_python);
    let mut threads: Vec<&DumpedThread> = process.threads.iter().filter(is_python).collect();
    threads.sort_by_key(|thread| Reverse(thread.tid));
    let trace = |thread: &&DumpedThread| {
        let id = u64::try_from(thread.tid).unwrap_or(0);
        StackTrace {
            pid: process.pid,
            thread_id: id,
            thread_name: thread.python_name.clone(),
            os_thread_id: Some(id),
            active: thread.state == ThreadState::Running,
            owns_gil: thread.gil == Gil::Held,
            frames: Vec::new(),
            process_info: None,
        }
    };
    (!threads.is_empty()).then(|| PySpyView {
        version: process.python.clone(),
        executable,
        threads: threads.iter().map(trace).collect(),
        tids: threads.iter().map(|thread| Some(thread.tid)).collect(),
    })
}

fn merge(trace: &mut StackTrace, thread: &DumpedThread, native: bool) {
    let python = || thread.frames.iter().filter(|frame| frame.is_python);
    let is_same = |(own, seen): (&DumpedFrame, &Frame)| {
        own.file == seen.filename && i64::from(own.line) == i64::from(seen.line)
    };
    let agrees = python().count() == trace.frames.len() && python().zip(&trace.frames).all(is_same);
    let mut seen = match agrees {
        true => std::mem::take(&mut trace.frames),
        false => python().map(python_frame).collect(),
    }
    .into_iter();
    if !native {
        trace.frames = seen.collect();
        return;
    }
    let leaf = thread.frames.iter().position(|frame| frame.is_python);
    let root = thread
        .frames
        .iter()
        .rposition(|frame| frame.is_python || !is_start(&frame.file, &frame.name));
    trace.frames = thread
        .frames
        .iter()
        .take(root.map_or(0, |root| root + 1))
        .enumerate()
        .filter_map(|(index, frame)| {
            // Between two Python functions the interpreter's frames show nothing.
            let is_shown = !frame.is_plumbing || leaf.is_none_or(|leaf| index < leaf);
            match frame.is_python {
                true => seen.next(),
                false => is_shown.then(|| native_frame(frame)),
            }
        })
        .collect();
}

fn python_frame(frame: &DumpedFrame) -> Frame {
    Frame {
        name: frame.name.clone(),
        filename: frame.file.clone(),
        module: None,
        short_filename: Some(without_packages_folder(&frame.file).to_owned()),
        line: i32::try_from(frame.line).unwrap_or(0),
        locals: None,
        is_entry: false,
        is_shim_entry: false,
    }
}

fn native_frame(frame: &DumpedFrame) -> Frame {
    Frame {
        name: frame.short_name.clone(),
        filename: frame.file.clone(),
        module: Some(frame.file.clone()),
        short_filename: Some(file_name(&frame.file).to_owned()),
        line: 0,
        locals: None,
        is_entry: false,
        is_shim_entry: false,
    }
}

/// What `py-spy dump` prints of a process.
pub fn render_text(head: &PySpyHead, view: &PySpyView) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "Process {}: {}", head.pid, head.command.join(" "));
    let _ = writeln!(out, "Python v{} ({})", view.version, view.executable);
    if let Some((pid, command)) = &head.parent {
        let _ = writeln!(out, "Parent Process {pid}: {}", command.join(" "));
    }
    out.push('\n');
    // Oldest first.
    for trace in view.threads.iter().rev() {
        thread(&mut out, trace);
    }
    out
}

/// What `py-spy dump --json` prints of a process.
///
/// # Errors
///
/// None that is known: all keys are strings.
pub fn render_json(view: &PySpyView) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&view.threads)
}

fn thread(out: &mut String, trace: &StackTrace) {
    let _ = write!(
        out,
        "Thread {} ({})",
        trace.format_threadid(),
        trace.status_str()
    );
    if let Some(name) = &trace.thread_name {
        let _ = write!(out, ": \"{name}\"");
    }
    out.push('\n');
    for frame in &trace.frames {
        let file = frame.short_filename.as_ref().unwrap_or(&frame.filename);
        let _ = match frame.line {
            0 => writeln!(out, "    {} ({file})", frame.name),
            line => writeln!(out, "    {} ({file}:{line})", frame.name),
        };
        let mut titles = [(true, "Arguments:"), (false, "Locals:")].map(Some);
        for local in frame.locals.iter().flatten() {
            for title in &mut titles {
                if let Some((_, words)) =
                    title.take_if(|(is_argument, _)| *is_argument == local.arg)
                {
                    let _ = writeln!(out, "        {words}");
                }
            }
            let value = local.repr.as_deref().unwrap_or("?");
            let _ = writeln!(out, "            {}: {value}", local.name);
        }
    }
}
