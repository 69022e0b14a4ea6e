//! A thread of torchspy's own, and whether it hangs in the kernel with a read of another process.

use super::clock::monotonic_ns;
use super::threads::{SchedStat, ThreadFiles, Whereabouts};
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};

/// System calls that wait for another process's memory, or for its exec, for as long as that takes: process_vm_readv, ptrace (its
/// cred_guard_mutex), read and pread64 (of /proc/PID/environ and its like).
#[cfg(target_arch = "x86_64")]
const WAITING: [u32; 4] = [310, 101, 0, 17];
#[cfg(not(target_arch = "x86_64"))]
const WAITING: [u32; 4] = [270, 117, 63, 67];

/// A thread that has been in one of these calls for so long, without being scheduled, hangs, ns.
const HANGS_NS: u64 = 400_000_000;

/// A thread of torchspy.
#[derive(Debug)]
pub struct OwnThread {
    handle: JoinHandle<()>,
    tid: Receiver<i32>,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    files: ThreadFiles,
    stat: SchedStat,
    since_ns: u64,
}

impl OwnThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// None is to be had.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (sender, tid) = channel();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            // Nobody listens where the session has gone.
            let _ = sender.send(nix::unistd::gettid().as_raw());
            work();
        })?;
        Ok(Self {
            handle,
            tid,
            seen: None,
        })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    /// Whether it hangs; to be asked again and again.
    pub fn hangs(&mut self) -> bool {
        let now_ns = monotonic_ns();
        if let Ok(tid) = self.tid.try_recv() {
            let files = ThreadFiles::open(std::process::id() as i32, tid);
            let stat = files.schedstat().unwrap_or_default();
            self.seen = Some(Seen {
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
        now_ns - seen.since_ns > HANGS_NS
    }

    /// Waits for its end; `false` if it panicked.
    pub fn join(self) -> bool {
        self.handle.join().is_ok()
    }
}
