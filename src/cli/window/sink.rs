//! Asks for the window, and puts what comes of it into the recording.

use super::steps::{Due, Steps};
use super::{LONGEST, Length, Request, SHORTEST, Shared, lock};
use crate::cli::messages;
use crate::model::process::ProcessInfo;
use crate::model::progress::facts;
use crate::model::segment::Segment;
use crate::model::track::{CounterTracks, TrackKind};
use crate::os::process_info::read_stat;
use crate::os::process_usage::machine_memory;
use crate::sampling::session::SegmentSink;
use crate::torch::rules::RuleSet;
use crate::trace::kept::Kept;
use crate::trace::on_demand::{LEAD, WARM_UP, Window, trace_name};
use nix::sys::statvfs::statvfs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// Processes of several recordings have their windows at the same multiple of this time, ms.
const ROUND_MS: u64 = 10_000;
/// Memory of the machine that is needed for each process, for a second of the window and at least,
/// bytes: 2 s of small operators take up to 1.5 GB in their process.
const MEMORY_PER_S: u64 = 1 << 30;
const LEAST_MEMORY: u64 = 2 << 30;
/// More is asked for in no case: what takes longer than some seconds has long steps, and those few
/// events.
const MOST_MEMORY: u64 = 8 << 30;
/// Space on the disk for a second of it, bytes.
const DISK_PER_S: u64 = 250_000_000;
/// Maximum size of a trace on the disk, bytes.
const MOST_TRACE: u64 = 1 << 30;
const TOO_LARGE: &str = "it is larger than 1 GB; a shorter window makes a smaller one";
/// How long after the end of its window a trace may come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the end of a recording waits for traces.
const LONGEST_END: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// How the process that reduces begins its error, and that of a trace without events.
const UNREADABLE: &str = "cannot read /proc/self/fd/0 as a trace: ";
const NOTHING: &str = "it has no event of torch.profiler";
const TOO_SHORT: &str =
    "it ended before steps were seen for 10 s, the last 3 s of them without torch.compile at work";
/// Processes that are remembered.
const MOST_PROCESSES: usize = 4096;

/// A sink, to which reduced traces are added.
pub(crate) struct WindowSink<S> {
    sink: S,
    folder: Arc<TempDir>,
    shared: Arc<Mutex<Shared>>,
    length: Length,
    /// There are ranks in other recordings.
    is_of_many: bool,
    /// When the recording ends, if that is known.
    ends: Option<Instant>,
    state: State,
    /// By pid. A segment without its samples does not have a process.
    processes: BTreeMap<i32, ProcessInfo>,
    /// Texts of [`Kept`] by pid.
    unwritten: Vec<(i32, String)>,
}

enum State {
    Waits(Steps),
    Asked(Asked),
    Over,
}

/// A window that was asked for.
struct Asked {
    /// Processes whose trace has not come.
    awaited: BTreeSet<i32>,
    /// Those of them whose trace is too large.
    large: BTreeSet<i32>,
    /// When the window is over.
    over: Instant,
    /// When the last of them must have come.
    deadline: Instant,
    /// Traces that are being reduced.
    reducing: Vec<(i32, JoinHandle<String>)>,
}

impl<S> WindowSink<S> {
    pub(super) fn new(
        sink: S,
        folder: Arc<TempDir>,
        shared: Arc<Mutex<Shared>>,
        length: Length,
        is_of_many: bool,
        ends: Option<Instant>,
    ) -> Self {
        Self {
            sink,
            folder,
            shared,
            length,
            is_of_many,
            ends,
            state: State::Waits(Steps::default()),
            processes: BTreeMap::new(),
            unwritten: Vec::new(),
        }
    }

    fn look(&mut self, segment: &Segment) {
        self.take_signals(&segment.sideband.tracks);
        for process in &segment.tables.processes {
            if self.processes.len() < MOST_PROCESSES {
                self.processes.insert(process.pid, process.clone());
            }
        }
        if let State::Waits(steps) = &mut self.state {
            steps.take(segment, RuleSet::built_in());
            match steps.due(segment.end_ns) {
                Due::Never => self.give_up("the program uses torch.profiler itself"),
                Due::Now(pids, step_ns) if !segment.last => self.ask(pids, step_ns),
                _ if segment.last => self.give_up(TOO_SHORT),
                _ => {}
            }
        }
        if let State::Asked(asked) = &mut self.state {
            let end = Instant::now() + LONGEST_END;
            loop {
                self.unwritten
                    .extend(asked.look(self.folder.path(), &self.shared));
                if asked.is_over() {
                    self.state = State::Over;
                    break;
                }
                if !segment.last {
                    break;
                }
                if Instant::now() >= end {
                    asked.deadline = end;
                }
                sleep(LOOK);
            }
        }
    }

    /// Notes which signals ended processes.
    fn take_signals(&self, tracks: &CounterTracks) {
        for point in &tracks.points {
            let info = tracks.tracks.get(point.track.index());
            let signal = i32::try_from(point.value);
            if let (Some(info), Ok(signal)) = (info, signal)
                && info.kind == TrackKind::EndingSignal
            {
                lock(&self.shared).signals.insert(info.pid, signal);
            }
        }
    }

    /// No window, for this reason.
    fn give_up(&mut self, why: &str) {
        lock(&self.shared).note(format!("--trace: torch.profiler did not run: {why}"));
        if let Some(&pid) = self.processes.keys().next() {
            self.unwritten.push((pid, failed(why)));
        }
        self.state = State::Over;
    }

    fn ask(&mut self, pids: Vec<i32>, step_ns: u64) {
        let length = match self.length {
            Length::Time(time) => time,
            // A step is cut at either end.
            Length::Steps(steps) => Duration::from_nanos(step_ns)
                .saturating_mul(steps.saturating_add(1))
                .mul_f64(1.1)
                .clamp(SHORTEST, LONGEST),
        };
        if let Some(why) = lack(pids.len() as u64, length, self.folder.path()) {
            return self.give_up(&why);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let earliest = now.unwrap_or_default() + LEAD;
        let mut start_ms = u64::try_from(earliest.as_millis()).unwrap_or(u64::MAX);
        if self.is_of_many || pids.len() > 1 {
            start_ms = start_ms.next_multiple_of(ROUND_MS);
        }
        let rounded = Duration::from_millis(start_ms).saturating_sub(earliest);
        let window = Window { start_ms, length };
        let start = Instant::now() + LEAD + rounded;
        if self.ends.is_some_and(|ends| start + length >= ends) {
            return self.give_up("the recording ends (--duration) before its window would");
        }
        let awaited: BTreeSet<i32> = pids.into_iter().collect();
        let processes = match awaited.len() {
            1 => String::new(),
            many => format!(" in {many} processes"),
        };
        let mut shared = lock(&self.shared);
        shared.note(format!(
            "--trace: torch.profiler runs{processes} in {:.0} s, for {length:.1?}; until its trace has come, torch may crash if the program ends",
            (LEAD + rounded).as_secs_f64()
        ));
        shared.asked = Some(Request {
            pids: awaited.clone(),
            configuration: window.configuration(self.folder.path()),
            until: start - WARM_UP,
        });
        self.state = State::Asked(Asked {
            awaited,
            large: BTreeSet::new(),
            over: start + length,
            deadline: start + length + PATIENCE,
            reducing: Vec::new(),
        });
    }
}

impl<S: SegmentSink> SegmentSink for WindowSink<S> {
    fn write(&mut self, segment: &Segment) -> io::Result<()> {
        self.look(segment);
        let mut with: Option<Segment> = None;
        for (pid, text) in std::mem::take(&mut self.unwritten) {
            if let Some(process) = self.processes.get(&pid) {
                let with = with.get_or_insert_with(|| segment.clone());
                with.add_condition(process, facts::TORCH_TRACE, text);
            }
        }
        self.sink.write(with.as_ref().unwrap_or(segment))
    }
}

impl Asked {
    fn is_over(&self) -> bool {
        self.awaited.is_empty() && self.reducing.is_empty()
    }

    /// Texts of what has been reduced, or failed, since the last call.
    fn look(&mut self, folder: &Path, shared: &Mutex<Shared>) -> Vec<(i32, String)> {
        let mut done = Vec::new();
        for pid in self.awaited.clone() {
            let path = folder.join(trace_name(pid));
            // While it is written, its name has this extension.
            let half = path.with_extension("json.tmp");
            let is_large = |file: Metadata| file.len() > MOST_TRACE;
            if fs::metadata(&half).is_ok_and(is_large) {
                self.large.insert(pid);
            }
            if self.large.contains(&pid) {
                // It is open in the process, which goes on writing: to remove it frees nothing.
                let _ = File::options().write(true).truncate(true).open(&half);
            }
            let result = match File::open(&path) {
                Ok(file) if self.large.contains(&pid) || file.metadata().is_ok_and(is_large) => {
                    Err(TOO_LARGE.to_owned())
                }
                Ok(file) => reduce(file),
                Err(_) => match self.why_not(pid, shared) {
                    Some(_) if self.large.contains(&pid) => Err(TOO_LARGE.to_owned()),
                    Some(why) => Err(why),
                    None => continue,
                },
            };
            let _ = fs::remove_file(&path);
            let _ = fs::remove_file(&half);
            self.awaited.remove(&pid);
            let mut shared = lock(shared);
            shared.open.remove(&pid);
            if let Some(request) = &mut shared.asked {
                request.pids.remove(&pid);
            }
            match result {
                Ok(thread) => {
                    shared.note(format!("--trace: the trace of process {pid} has come"));
                    self.reducing.push((pid, thread));
                }
                Err(why) => {
                    shared.note(format!("--trace: no trace of process {pid}: {why}"));
                    done.push((pid, failed(&why)));
                }
            }
        }
        let (ended, others) = std::mem::take(&mut self.reducing)
            .into_iter()
            .partition(|(_, thread)| thread.is_finished());
        self.reducing = others;
        let texts = ended.into_iter().map(|(pid, thread)| {
            let text = thread.join();
            (pid, text.unwrap_or_else(|_| failed("reducing it failed")))
        });
        done.extend(texts);
        done
    }

    /// Why no trace will come; `None` while it may.
    fn why_not(&self, pid: i32, shared: &Mutex<Shared>) -> Option<String> {
        let mut shared = lock(shared);
        let has_it = shared.open.contains(&pid);
        // It might have ended after it had written the trace: that is seen with the next look.
        let ended = read_stat(pid).map_or(true, |stat| stat.is_zombie());
        if ended && has_it {
            shared.ended.insert(pid);
        }
        let is_over = Instant::now() >= self.over;
        let why = match (has_it, ended) {
            (true, true) if !is_over => "the process ended before its window was over",
            (true, true) => {
                "the process ended and had not written it: the program may use a profiler itself, or the disk is full"
            }
            (false, true) if !is_over => "the process ended before its window",
            (_, false) if Instant::now() < self.deadline => return None,
            (true, false) => {
                "it was not written in time: the program may use a profiler itself, or the disk is full"
            }
            (false, _) => {
                "its torch did not ask what to do in time: it may be too old, or in a container of its own"
            }
        };
        Some(why.to_owned())
    }
}

/// What the windows of so many processes may need more of than there is.
fn lack(processes: u64, length: Duration, folder: &Path) -> Option<String> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let seconds = length.as_secs_f64();
    let (memory, disk) = needed(seconds);
    let available = machine_memory().map(|(available, _)| available);
    let space = statvfs(folder).ok();
    let space = space.map(|of| of.blocks_available().saturating_mul(of.fragment_size()));
    let all = [
        ("of memory", memory, available),
        ("on the disk of the temporary folder", disk, space),
    ];
    all.into_iter().find_map(|(of_what, each, there)| {
        let needed = each.saturating_mul(processes);
        let there = there.filter(|&there| there < needed)?;
        Some(format!(
            "it may need {:.1} GiB {of_what}, and {:.1} GiB are available; a shorter window needs less",
            gib(needed),
            gib(there)
        ))
    })
}

/// Memory and space on the disk that a window of so many seconds may need in each process, bytes.
fn needed(seconds: f64) -> (u64, u64) {
    let of = |bytes_per_s: u64| (seconds * bytes_per_s as f64) as u64;
    (
        of(MEMORY_PER_S).clamp(LEAST_MEMORY, MOST_MEMORY),
        of(DISK_PER_S).min(MOST_TRACE),
    )
}

/// The text of a window that gave nothing.
fn failed(why: &str) -> String {
    Kept::new(Err(why.to_owned())).text()
}

/// Reduces a trace in a process of its own, which gives its memory back and does not touch the
/// recorder's memory map. The thread returns a text of [`Kept`].
fn reduce(trace: File) -> Result<JoinHandle<String>, String> {
    let thread = Builder::new().name("torchspy-reduce".to_owned());
    let thread = thread.spawn(move || {
        let output = Command::new("/proc/self/exe")
            .args(["report", "--reduced", "--trace-file", "/proc/self/fd/0"])
            .stdin(trace)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output();
        match output {
            Ok(output) if output.status.success() => {
                String::from_utf8(output.stdout).unwrap_or_default()
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                let error = messages::error_in(&text);
                failed(match error.and_then(|text| text.strip_prefix(UNREADABLE)) {
                    Some(NOTHING) => "no operator ran in the window",
                    Some(why) => why,
                    None => error.unwrap_or("the process that reduces it was ended"),
                })
            }
            Err(error) => failed(&format!("no process can reduce it: {error}")),
        }
    });
    thread.map_err(|error| format!("no thread can reduce it: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pid: i32) -> Asked {
        let now = Instant::now();
        Asked {
            awaited: BTreeSet::from([pid]),
            large: BTreeSet::new(),
            over: now,
            deadline: now + PATIENCE,
            reducing: Vec::new(),
        }
    }

    fn file(path: &Path, length: u64) {
        File::create(path).unwrap().set_len(length).unwrap();
    }

    #[test]
    fn a_trace_that_is_too_large_is_emptied_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id() as i32;
        let path = folder.path().join(trace_name(pid));
        let half = path.with_extension("json.tmp");
        let shared = Mutex::new(Shared::default());
        lock(&shared).open.insert(pid);
        let mut asked = asked(pid);
        file(&half, MOST_TRACE);
        assert!(asked.look(folder.path(), &shared).is_empty());
        assert_eq!(fs::metadata(&half).unwrap().len(), MOST_TRACE);
        file(&half, MOST_TRACE + 1);
        assert!(asked.look(folder.path(), &shared).is_empty());
        assert_eq!(fs::metadata(&half).unwrap().len(), 0);
        // The process goes on where it was, and then has written all of it.
        file(&half, 100);
        assert!(asked.look(folder.path(), &shared).is_empty());
        assert_eq!(fs::metadata(&half).unwrap().len(), 0);
        fs::rename(&half, &path).unwrap();
        let wanted = [(pid, failed(TOO_LARGE))];
        assert_eq!(asked.look(folder.path(), &shared), wanted);
        assert!(asked.is_over() && !path.exists());
        assert!(lock(&shared).open.is_empty());
    }

    #[test]
    fn a_trace_that_is_written_and_too_large_is_not_reduced() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id() as i32;
        let path = folder.path().join(trace_name(pid));
        file(&path, MOST_TRACE + 1);
        let shared = Mutex::new(Shared::default());
        let found = asked(pid).look(folder.path(), &shared);
        assert_eq!(found, [(pid, failed(TOO_LARGE))]);
        assert!(!path.exists());
    }

    #[test]
    fn a_longer_window_needs_more() {
        assert_eq!(needed(0.5), (LEAST_MEMORY, DISK_PER_S / 2));
        assert_eq!(needed(3.0).0, 3 << 30);
        assert_eq!(needed(30.0), (MOST_MEMORY, MOST_TRACE));
        let folder = tempfile::tempdir().unwrap();
        let second = Duration::from_secs(1);
        let lack = lack(1 << 40, second, folder.path()).unwrap();
        assert!(lack.contains("GiB of memory"), "{lack}");
    }
}
