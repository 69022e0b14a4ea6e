//! `record --trace`: torch's own profiler, switched on once in the launched program, and what it
//! wrote, reduced, in the recording.
//!
//! torchspy is the daemon that each torch of the program asks what to do (see
//! [`crate::trace::on_demand`]). It answers until the program has ended. When steps are seen, all
//! processes that train are given the same window; the files that they write go to a private
//! folder, are reduced by a process of their own, and removed.

mod server;
mod sink;
mod steps;

pub(crate) use sink::WindowSink;

use super::failure::Failure;
use super::messages;
use crate::os::launch::Exit;
use crate::torch::job::JobPlace;
use crate::trace::on_demand::{
    CONFIGURATION, DEFAULT_CONFIGURATION, MOST_FOLDER, USER_CONFIGURATION, VARIABLES, environment,
    with_poll,
};
use nix::sys::signal::Signal;
use server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest window: a trace grows by up to 250 MB per second.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);
/// Shortest window.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
/// Signals of crashes.
const CRASHES: [i32; 5] = [
    Signal::SIGSEGV as i32,
    Signal::SIGABRT as i32,
    Signal::SIGBUS as i32,
    Signal::SIGILL as i32,
    Signal::SIGFPE as i32,
];
/// Longest configuration of a user's that is read, bytes.
const MOST_CONFIGURATION: usize = 64 << 10;

/// How long the window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Time(Duration),
    /// So many whole steps, by their mean length before the window.
    Steps(u32),
}

/// What the server, the sink and the recorder have in common.
#[derive(Debug, Default)]
struct Shared {
    asked: Option<Request>,
    /// Processes that fetched it, and whose trace has not come.
    open: BTreeSet<i32>,
    /// Of these, those that have ended.
    ended: BTreeSet<i32>,
    /// Signals that ended processes, by pid, as far as they are known.
    signals: BTreeMap<i32, i32>,
    /// Lines for the terminal.
    notes: Vec<String>,
}

/// What processes are given.
#[derive(Debug)]
struct Request {
    /// Those that have not fetched it.
    pids: BTreeSet<i32>,
    configuration: String,
    /// It is too late afterwards.
    until: Instant,
}

impl Shared {
    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// See [`TraceWindow::may_have_crashed`].
    fn may_have_crashed(&self, program: i32, exit: Exit) -> bool {
        let signal = match exit {
            Exit::Signal(signal) => signal,
            // As a shell has it.
            Exit::Code(code) => code - 128,
            Exit::Unknown => return false,
        };
        let pids = || self.open.iter().chain(&self.ended);
        let is_its_own = pids().any(|&pid| pid == program);
        // A launcher has a status of its own when another process fails. That of the process is
        // not known, and its signal only where it was seen.
        let of_others = pids().filter(|&&pid| pid != program).any(|pid| {
            let signal = self.signals.get(pid);
            signal.is_none_or(|signal| CRASHES.contains(signal))
        });
        let has_failed = exit != Exit::Code(0);
        CRASHES.contains(&signal) && is_its_own || has_failed && of_others
    }
}

/// What `shared` holds, whatever happened to a thread that held it.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The daemon, until it is dropped.
#[derive(Debug)]
pub(crate) struct TraceWindow {
    shared: Arc<Mutex<Shared>>,
    folder: Arc<TempDir>,
    length: Length,
    _server: Server,
}

impl TraceWindow {
    /// Starts to answer.
    ///
    /// # Errors
    /// Another daemon serves this environment, or no folder, socket or thread can be made.
    pub(crate) fn start(length: Length) -> Result<Self, Failure> {
        if let Some(name) = VARIABLES.iter().find(|name| env::var_os(name).is_some()) {
            let text =
                format!("--trace: {name} is set: another daemon switches torch.profiler on here");
            return Err(Failure::message(text).hint(format!("unset {name}, or leave --trace out")));
        }
        let cannot = |error: io::Error| {
            Failure::message(format!("--trace: cannot wait for torch.profiler: {error}"))
        };
        let users = users_configuration().map_err(cannot)?;
        let folder = Arc::new(private_folder(&with_poll(&users)).map_err(cannot)?);
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let server = Server::start(folder.path(), shared.clone()).map_err(cannot)?;
        messages::note(&format!(
            "--trace: torch.profiler runs once, for {}, when the program trains; if the program ends about then, torch may crash after its last line",
            length.words()
        ));
        Ok(Self {
            shared,
            folder,
            length,
            _server: server,
        })
    }

    /// Variables of the program.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        environment(self.folder.path())
    }

    /// Adds what comes of the window to the segments that go to `sink`. `place`: what the program
    /// is in its job. `duration`: of the recording.
    pub(crate) fn sink<S>(
        &self,
        sink: S,
        place: &JobPlace,
        duration: Option<Duration>,
    ) -> WindowSink<S> {
        let is_of_many = place.world_size.is_some_and(|size| size > 1);
        let (folder, shared) = (self.folder.clone(), self.shared.clone());
        let ends = duration.map(|duration| Instant::now() + duration);
        WindowSink::new(sink, folder, shared, self.length, is_of_many, ends)
    }

    /// The lines that are to be printed since the last call.
    pub(crate) fn notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared).notes)
    }

    /// Whether the end of the program may be a crash of torch.profiler: it crashed, or one of its
    /// processes ended, after it was given its window and before its trace had come, and not by a
    /// signal that is no crash.
    pub(crate) fn may_have_crashed(&self, program: i32, exit: Exit) -> bool {
        lock(&self.shared).may_have_crashed(program, exit)
    }
}

impl Drop for TraceWindow {
    fn drop(&mut self) {
        // The sink may live on for a moment where the end is not waited for.
        let _ = fs::remove_dir_all(self.folder.path());
    }
}

impl Length {
    fn words(self) -> String {
        match self {
            Self::Time(time) => format!("{time:?}"),
            Self::Steps(1) => "a step".to_owned(),
            Self::Steps(steps) => format!("{steps} steps"),
        }
    }
}

/// A folder that nobody else may enter, with a short path, and the configuration of libkineto in
/// it.
fn private_folder(configuration: &str) -> io::Result<TempDir> {
    let make = |parent: &Path| {
        let folder = tempfile::Builder::new()
            .prefix("torchspy-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let path = folder.path().as_os_str().as_bytes();
        // Configurations have it as text: libkineto takes `#` for a comment.
        let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
        if path.len() > MOST_FOLDER || !path.iter().all(is_plain) {
            return Err(io::Error::other(
                "its path is too long or has special characters",
            ));
        }
        fs::write(folder.path().join(CONFIGURATION), configuration)?;
        Ok(folder)
    };
    let named = std::path::absolute(env::temp_dir()).and_then(|parent| make(&parent));
    named.or_else(|_| make(Path::new("/tmp")))
}

/// What the user tells libkineto by a file, which ours replaces.
fn users_configuration() -> io::Result<String> {
    let named = env::var_os(USER_CONFIGURATION).filter(|name| !name.is_empty());
    let named = named.map(PathBuf::from);
    let is_named = named.is_some();
    let path = named.unwrap_or_else(|| DEFAULT_CONFIGURATION.into());
    match fs::read(&path) {
        Ok(bytes) if bytes.len() > MOST_CONFIGURATION => Err(io::Error::other(format!(
            "{} is no configuration of libkineto",
            path.display()
        ))),
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        // libkineto goes on without it, too.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => Ok(String::new()),
        Err(error) => {
            messages::warning(&format!(
                "--trace: the configuration of libkineto cannot be read: {}: {error}",
                path.display()
            ));
            Ok(String::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: i32 = 100;
    const RANK: i32 = 101;
    const SEGV: i32 = Signal::SIGSEGV as i32;
    const TERM: i32 = Signal::SIGTERM as i32;

    fn shared(open: &[i32], ended: &[i32], signals: &[(i32, i32)]) -> Shared {
        Shared {
            open: open.iter().copied().collect(),
            ended: ended.iter().copied().collect(),
            signals: signals.iter().copied().collect(),
            ..Shared::default()
        }
    }

    #[test]
    fn a_crash_in_the_window_may_be_that_of_torch() {
        let may = |shared: &Shared, exit| shared.may_have_crashed(PROGRAM, exit);
        for shared in [shared(&[PROGRAM], &[], &[]), shared(&[], &[PROGRAM], &[])] {
            assert!(may(&shared, Exit::Signal(SEGV)));
            assert!(may(&shared, Exit::Code(128 + SEGV)));
            // It failed by itself, or was told to end.
            for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(TERM)] {
                assert!(!may(&shared, exit), "{exit:?}");
            }
            assert!(!may(&shared, Exit::Unknown));
        }
        // Nothing was open.
        let shared = shared(&[], &[], &[(RANK, SEGV)]);
        assert!(!may(&shared, Exit::Signal(SEGV)));
        assert!(!may(&shared, Exit::Code(1)));
    }

    #[test]
    fn a_launcher_fails_by_the_crash_of_a_rank() {
        let may = |shared: &Shared, exit| shared.may_have_crashed(PROGRAM, exit);
        // torchrun ends with 1 then. Which signal it was is not always seen.
        for signals in [&[(RANK, SEGV)][..], &[]] {
            let shared = shared(&[], &[RANK], signals);
            assert!(may(&shared, Exit::Code(1)), "{signals:?}");
            assert!(!may(&shared, Exit::Code(0)));
        }
        let told = shared(&[RANK], &[], &[(RANK, TERM)]);
        assert!(!may(&told, Exit::Code(1)));
        let one_of_two = shared(&[RANK, 102], &[], &[(RANK, TERM), (102, SEGV)]);
        assert!(may(&one_of_two, Exit::Code(1)));
    }
}
