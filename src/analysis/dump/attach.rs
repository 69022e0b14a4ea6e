//! Attaches what was read of objects after a snapshot to the threads that they belong to.

use crate::model::dump::{
    Dump, DumpedFrame, DumpedProcess, DumpedThread, DumpedWait, Inspected, InspectedFrame,
    InspectedThread, ProcessMemory, Progress,
};
use crate::model::profile::Role;
use crate::model::sample::ThreadState;
use crate::model::wait::WaitKind;

/// Adds names of threads, locks and their owners, variables, and counters that are variables.
pub fn attach(dump: &mut Dump, inspected: Vec<Inspected>, with_locals: bool) {
    for of in inspected {
        if of.left_out > 0 {
            dump.missing.push(format!(
                "process {}: of {} more threads no names, locks and variables were read",
                of.pid, of.left_out
            ));
        }
        let missing = of.missing.iter();
        dump.missing
            .extend(missing.map(|missing| format!("process {}: {missing}", of.pid)));
        let Some(process) = dump.processes.iter_mut().find(|each| each.pid == of.pid) else {
            continue;
        };
        process.tasks = of.tasks;
        if let (Some(memory), Some(tensors)) = (&mut dump.memory, of.memory) {
            let pid = of.pid;
            memory.push(ProcessMemory { pid, tensors });
        }
        for found in of.threads {
            to_thread(process, found, with_locals);
        }
    }
}

fn to_thread(process: &mut DumpedProcess, found: InspectedThread, with_locals: bool) {
    let is_first = found.tid == process.pid;
    let is_trainer = matches!(process.role, Role::Trainer { .. });
    let Some(thread) = process
        .threads
        .iter_mut()
        .find(|each| each.tid == found.tid)
    else {
        return;
    };
    thread.python_name = found.python_name.clone().or_else(|| {
        let has_frames = is_first && !found.frames.is_empty();
        has_frames.then(|| "MainThread".to_owned())
    });
    set_lock(thread, &found);
    let pairs = unmoved(thread, &found.frames);
    if thread.trains && is_trainer {
        for (_, frame) in &pairs {
            for (name, value) in &frame.counters {
                process.progress.push(Progress {
                    what: name.clone(),
                    value: *value,
                    source: frame.place.function.clone(),
                });
            }
        }
    }
    if with_locals && !found.frames.is_empty() {
        let first = pairs.first().map(|(index, _)| *index);
        let moved = python_frames(thread).take_while(|(index, _)| Some(*index) != first);
        thread.moved_frames = moved.count();
        for (index, frame) in pairs {
            if let Some(ours) = thread.frames.get_mut(index) {
                ours.locals = Some(frame.locals.clone());
            }
        }
    }
}

/// Only a thread that slept when it was inspected waits for a lock.
fn set_lock(thread: &mut DumpedThread, found: &InspectedThread) {
    let Some((lock, owner)) = found.lock.clone() else {
        return;
    };
    if thread.state == ThreadState::Running {
        return;
    }
    let wait = thread.wait.get_or_insert_with(|| DumpedWait {
        kind: WaitKind::Lock,
        what: String::new(),
        owner: None,
        lock: None,
    });
    // A stopped process still waits for its lock.
    if wait.kind == WaitKind::Stopped {
        wait.kind = WaitKind::Lock;
        wait.what.clear();
    }
    wait.lock = Some(lock);
    wait.owner = wait.owner.take().or(owner);
}

fn python_frames(thread: &DumpedThread) -> impl Iterator<Item = (usize, &DumpedFrame)> {
    let frames = thread.frames.iter().enumerate();
    frames.filter(|(_, frame)| frame.is_python && !frame.is_region)
}

/// The frames of the snapshot that have not changed since, leaf first, with what was read of them:
/// those that were called before all frames that changed. Either list may lack frames at its root:
/// for a forked worker the parent's frames are not shown, and in a deep stack not all are
/// inspected.
fn unmoved<'f>(
    thread: &DumpedThread,
    found: &'f [InspectedFrame],
) -> Vec<(usize, &'f InspectedFrame)> {
    let ours: Vec<(usize, &DumpedFrame)> = python_frames(thread).collect();
    let is_unmoved = ours
        .iter()
        .zip(found)
        .all(|((_, ours), theirs)| is_same(ours, theirs));
    // If nothing moved, frames are matched from the leaf, else from the root.
    let (ours, theirs) = match is_unmoved {
        true => {
            let both = ours.len().min(found.len());
            (&ours[..both], &found[..both])
        }
        false => {
            let theirs = up_to_root(&ours, found);
            let both = ours.len().min(theirs.len());
            (&ours[ours.len() - both..], &theirs[theirs.len() - both..])
        }
    };
    let pairs = ours.iter().zip(theirs);
    let mut pairs: Vec<(usize, &InspectedFrame)> = pairs
        .rev()
        .take_while(|((_, ours), theirs)| theirs.is_steady && is_same(ours, theirs))
        .map(|((index, _), theirs)| (*index, theirs))
        .collect();
    pairs.reverse();
    pairs
}

/// The frames of the second read up to the one that is the root of the first; none if that frame is
/// ambiguous.
fn up_to_root<'f>(
    ours: &[(usize, &DumpedFrame)],
    found: &'f [InspectedFrame],
) -> &'f [InspectedFrame] {
    let Some((_, root)) = ours.last() else {
        return &[];
    };
    let is_root = |each: &&InspectedFrame| is_same_function(root, each);
    let mut places = found.iter().filter(is_root);
    match (places.next(), places.next()) {
        (Some(_), None) => {
            let at = found.iter().position(|each| is_root(&each));
            at.and_then(|at| found.get(..=at)).unwrap_or_default()
        }
        _ => &[],
    }
}

fn is_same_function(ours: &DumpedFrame, theirs: &InspectedFrame) -> bool {
    (&ours.name, &ours.file) == (&theirs.place.function, &theirs.place.file)
}

fn is_same(ours: &DumpedFrame, theirs: &InspectedFrame) -> bool {
    is_same_function(ours, theirs) && ours.line == theirs.place.line
}

#[cfg(test)]
mod tests {
    use super::super::built::{frame, process, thread};
    use super::*;
    use crate::model::dump::{Local, Lock, Owner, Place};

    /// A frame as it was found later; one that ends with an exclamation mark moved.
    fn theirs(words: &str) -> InspectedFrame {
        let frame = frame(words.trim_end_matches('!'));
        InspectedFrame {
            place: Place {
                function: frame.name,
                file: frame.file,
                line: frame.line,
            },
            index: 0,
            is_steady: !words.ends_with('!'),
            locals: vec![Local {
                name: "at".to_owned(),
                value: words.to_owned(),
            }],
            counters: Vec::new(),
        }
    }

    fn found(frames: &[&str]) -> InspectedThread {
        InspectedThread {
            tid: 7,
            frames: frames.iter().map(|words| theirs(words)).collect(),
            ..InspectedThread::default()
        }
    }

    /// What was attached to each frame, a dash for nothing, and how many frames moved.
    fn attached(frames: &[&str], inspected: &[&str]) -> (String, usize) {
        let mut process = process(7, vec![thread(7, frames)]);
        to_thread(&mut process, found(inspected), true);
        let thread = &process.threads[0];
        let words = thread.frames.iter().map(|frame| {
            let locals = frame.locals.as_deref().unwrap_or_default();
            locals.first().map_or("-", |local| &local.value)
        });
        (words.collect::<Vec<_>>().join(" "), thread.moved_frames)
    }

    #[test]
    fn variables_of_what_stood_still() {
        let is = |frames: &[&str], inspected: &[&str], wanted: &str, moved: usize| {
            assert_eq!(attached(frames, inspected), (wanted.to_owned(), moved));
        };
        is(&[".c:0", "f:1", "g:2"], &["f:1", "g:2"], "- f:1 g:2", 0);
        // It moved since, or moved while it was read.
        is(
            &["f:1", "g:2", "h:3"],
            &["f:9", "g:2", "h:3"],
            "- g:2 h:3",
            1,
        );
        is(&["f:1", "g:2"], &["f:1!", "g:2"], "- g:2", 1);
        is(&["f:1", "g:2"], &["x:5", "f:1", "g:2"], "f:1 g:2", 0);
        is(&["f:1", "g:2"], &["g:2"], "- g:2", 1);
        is(&["f:1", "g:2"], &["f:1", "g:3"], "- -", 2);
        // The parent's frames are below the root; a deep stack is read in part.
        is(
            &["f:1", "loop:2"],
            &["f:1", "loop:2", "main:3"],
            "f:1 loop:2",
            0,
        );
        is(
            &["f:5", "loop:2"],
            &["f:1", "loop:2", "main:3"],
            "- loop:2",
            1,
        );
        is(&["f:1", "g:2", "main:3"], &["f:1", "g:2"], "f:1 g:2 -", 0);
        // Ambiguous: either may be the root.
        is(&["g:1", "f:2"], &["g:9", "f:2", "f:2"], "- -", 2);
    }

    #[test]
    fn a_lock_is_no_wait_of_a_thread_that_ran() {
        let lock = Lock {
            kind: "threading.Lock",
            address: 0x100,
            name: None,
            is_timed: false,
        };
        let owner = Owner {
            tid: 8,
            by: "its `with` block",
        };
        let with_lock = InspectedThread {
            lock: Some((lock.clone(), Some(owner))),
            ..found(&["f:1"])
        };
        let mut asleep = process(7, vec![thread(7, &["f:1"])]);
        to_thread(&mut asleep, with_lock.clone(), false);
        let wait = asleep.threads[0].wait.clone().expect("a wait");
        assert_eq!((wait.kind, wait.lock), (WaitKind::Lock, Some(lock)));
        assert_eq!(wait.owner.map(|owner| owner.tid), Some(8));
        let mut running = process(7, vec![thread(7, &["f:1"])]);
        running.threads[0].state = ThreadState::Running;
        to_thread(&mut running, with_lock, false);
        assert_eq!(running.threads[0].wait, None);
    }
}
