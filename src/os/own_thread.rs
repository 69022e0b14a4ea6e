//! torchspy's own threads, and detection of one that hangs in the kernel in a read of another
//! process.

use super::clock::monotonic_ns;
use super::threads::{SchedStat, ThreadFiles, Whereabouts};
use crate::arch::system_calls::{Sysno, number};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// System calls that wait for another process's memory, or for its exec (ptrace, its
/// cred_guard_mutex), for as long as that takes; read and pread64 (of /proc/PID/environ and its
/// like); statx (of its program, whose file system may not answer).
const WAITING: [u32; 5] = [
    number(Sysno::process_vm_readv),
    number(Sysno::ptrace),
    number(Sysno::read),
    number(Sysno::pread64),
    number(Sysno::statx),
];

/// A thread that has been in one of these calls for so long, without being scheduled, hangs, ns.
const HANGS_NS: u64 = 400_000_000;
/// The same for a read before sampling starts.
const NO_ANSWER_NS: u64 = 600_000_000;
/// Time between two checks whether a thread hangs.
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct OwnThread {
    handle: JoinHandle<()>,
    tid: Receiver<i32>,
    seen: Option<LastState>,
}

#[derive(Debug)]
struct LastState {
    files: ThreadFiles,
    stat: SchedStat,
    since_ns: u64,
}

impl OwnThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// The kernel's, if it has no thread.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (sender, tid) = channel();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            // After the end of the session nothing receives this.
            let _ = sender.send(nix::unistd::gettid().as_raw());
            work();
        })?;
        Ok(Self {
            handle,
            tid,
            seen: None,
        })
    }

    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    /// Whether it hangs. Must be called repeatedly.
    pub fn hangs(&mut self) -> bool {
        self.hangs_for(HANGS_NS)
    }

    fn hangs_for(&mut self, longest_ns: u64) -> bool {
        let now_ns = monotonic_ns();
        if let Ok(tid) = self.tid.try_recv() {
            let files = ThreadFiles::open(std::process::id() as i32, tid);
            let stat = files.schedstat().unwrap_or_default();
            self.seen = Some(LastState {
                files,
                stat,
                since_ns: now_ns,
            });
        }
        let Some(seen) = &mut self.seen else {
            return false;
        };
        let stat = seen.files.schedstat().unwrap_or_default();
        let waits = match seen.files.whereabouts() {
            Ok(Whereabouts::InSyscall { number, .. }) => WAITING.contains(&number),
            _ => false,
        };
        if stat != seen.stat || !waits {
            (seen.stat, seen.since_ns) = (stat, now_ns);
        }
        now_ns - seen.since_ns > longest_ns
    }

    /// Waits for its end; `false` if it panicked.
    pub fn join(self) -> bool {
        self.handle.join().is_ok()
    }
}

/// Questions whose threads hang: the process that they are about, and whether they ended in the
/// meantime.
static HANGING: Mutex<Vec<(i32, Arc<AtomicBool>)>> = Mutex::new(Vec::new());

/// Whether an earlier question about this process is still without an answer: each would take
/// another thread and descriptor.
pub(super) fn is_silent(pid: i32) -> bool {
    let mut hanging = HANGING.lock().unwrap_or_else(PoisonError::into_inner);
    hanging.retain(|(_, over)| !over.load(Ordering::Acquire));
    hanging.iter().any(|(of, _)| *of == pid)
}

/// States that a question about this process is not waited for any more.
pub(super) fn abandon(pid: i32, over: Arc<AtomicBool>) {
    let mut hanging = HANGING.lock().unwrap_or_else(PoisonError::into_inner);
    hanging.push((pid, over));
}

/// A read of another process that runs on its own thread.
#[derive(Debug)]
pub struct Asked<T> {
    pid: i32,
    /// `None`: an earlier question is still without an answer.
    asking: Option<(OwnThread, Receiver<T>)>,
    over: Arc<AtomicBool>,
}

/// Runs a read that may block on the memory of process `pid`: the holder of its mmap lock, or the
/// server of one of its pages (userfaultfd, FUSE), may never respond.
///
/// # Errors
/// The kernel's, if it has no thread.
pub fn ask<T: Send + 'static>(
    pid: i32,
    question: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Asked<T>> {
    let over = Arc::new(AtomicBool::new(false));
    let asking = match is_silent(pid) {
        true => None,
        false => {
            let (sender, answer) = channel();
            let over = Arc::clone(&over);
            let thread = OwnThread::start("torchspy-ask", move || {
                // The receiver is gone if it took too long.
                let _ = sender.send(question());
                over.store(true, Ordering::Release);
            })?;
            Some((thread, answer))
        }
    };
    Ok(Asked { pid, asking, over })
}

impl<T> Asked<T> {
    /// The answer; `None` if its thread hangs, or that of an earlier question about the process
    /// does. That thread is abandoned, and ends with torchspy: the wait is killable.
    pub fn answer(self) -> Option<T> {
        let (mut thread, answer) = self.asking?;
        loop {
            match answer.recv_timeout(POLL) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if thread.hangs_for(NO_ANSWER_NS) => {
                    abandon(self.pid, self.over);
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};

    #[test]
    fn what_answers_is_heard_and_what_hangs_is_not_waited_for() {
        // No process has such a pid.
        const PID: i32 = -2;
        assert_eq!(ask(PID, || 3).unwrap().answer(), Some(3));
        let (mut reader, mut writer) = pipe().unwrap();
        let hangs = ask(PID, move || reader.read(&mut [0; 1]).unwrap()).unwrap();
        assert_eq!(hangs.answer(), None);
        // Nothing more is asked until it is answered.
        assert_eq!(ask(PID, || 4).unwrap().answer(), None);
        writer.write_all(b"1").unwrap();
        while ask(PID, || ()).unwrap().answer().is_none() {
            std::thread::yield_now();
        }
    }

    /// A thread that waits for anything but a read of another process does not hang: it may wait
    /// for a CPU, or for a disk.
    #[test]
    fn what_only_takes_long_is_waited_for() {
        let (sender, wait) = channel();
        let slow = ask(-3, move || wait.recv().unwrap()).unwrap();
        let asking = std::thread::spawn(move || slow.answer());
        std::thread::sleep(Duration::from_nanos(2 * NO_ANSWER_NS));
        assert!(!asking.is_finished());
        sender.send(5).unwrap();
        assert_eq!(asking.join().unwrap(), Some(5));
    }
}
