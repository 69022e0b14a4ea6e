//! What the kernel reports of a process whose memory cannot be read: without its mmap lock, and
//! without stopping it.
//!
//! While a process's mmap lock is held for writing, every reader of its memory waits, including
//! readers of `/proc/PID/cmdline` and `/proc/PID/maps` (mm/memory.c, `__access_remote_vm`;
//! fs/proc/task_mmu.c). The files read here take no such lock: `comm`, `stat`, `syscall`, `wchan`,
//! `stack` (fs/proc/base.c).

use super::own_thread::{abandon, is_silent};
use super::process_info::{read_stat, read_text};
use super::threads::{TaskDirectory, ThreadFiles, Whereabouts, living_task};
use crate::model::sample::ThreadState;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Maximum number of lines kept of a kernel stack.
const MAX_KERNEL_FRAMES: usize = 64;
/// Maximum bytes read of a file.
const MAX_BYTES: u64 = 16 << 10;

/// A thread, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelThread {
    pub tid: i32,
    pub name: String,
    pub state: ThreadState,
    /// The number of the system call that it sleeps in.
    pub syscall: Option<u32>,
    pub wchan: Option<String>,
    /// Its stack in the kernel, leaf first; empty if the kernel hides it (CAP_SYS_ADMIN is
    /// required).
    pub stack: Vec<String>,
}

/// The processes of `pids` whose memory does not answer within `patience`: reading it would wait
/// for a lock that may never be released.
///
/// Each is read by a thread of its own, which ends with torchspy: the wait is killable.
pub fn without_answer(pids: &[i32], patience: Duration) -> Vec<i32> {
    without_answer_from(pids, patience, |pid| {
        let mut first = [0; 1];
        // Only that the read returned matters.
        let file = File::open(format!("/proc/{pid}/cmdline"));
        let _ = file.and_then(|mut file| file.read(&mut first));
    })
}

fn without_answer_from(
    pids: &[i32],
    patience: Duration,
    ask: impl Fn(i32) + Clone + Send + 'static,
) -> Vec<i32> {
    let (sender, answers) = channel();
    let (known, others): (Vec<i32>, Vec<i32>) = pids.iter().partition(|pid| is_silent(**pid));
    let mut silent: Vec<(i32, Arc<AtomicBool>)> = Vec::new();
    for pid in others {
        let (sender, ask) = (sender.clone(), ask.clone());
        let over = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&over);
        let asking = std::thread::Builder::new()
            .name("torchspy-ask".to_owned())
            // A large job has thousands of processes.
            .stack_size(64 << 10)
            .spawn(move || {
                ask(pid);
                // The receiver is gone if it took too long.
                let _ = sender.send(pid);
                own.store(true, Ordering::Release);
            });
        if asking.is_ok() {
            silent.push((pid, over));
        }
    }
    let deadline = Instant::now() + patience;
    while !silent.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(pid) => silent.retain(|(each, _)| *each != pid),
            Err(_) => break,
        }
    }
    let new = silent.into_iter().map(|(pid, over)| {
        abandon(pid, over);
        pid
    });
    known.into_iter().chain(new).collect()
}

/// A process that has ended and whose parent has not waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zombie {
    pub pid: i32,
    pub name: String,
    pub parent: i32,
}

/// The zombies among the children of `parents`.
pub fn zombies_of(parents: &[i32]) -> Vec<Zombie> {
    let listing = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = listing.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut zombies: Vec<Zombie> = pids
        .filter_map(|pid| {
            let stat = read_stat(pid).ok()?;
            let is_one = stat.state == b'Z' && parents.contains(&stat.parent_pid);
            is_one.then(|| Zombie {
                pid,
                name: read(&format!("/proc/{pid}/comm")).unwrap_or_default(),
                parent: stat.parent_pid,
            })
        })
        // A process of which only the first thread has ended has the same state.
        .filter(|zombie| living_task(zombie.pid) == zombie.pid)
        .collect();
    zombies.sort_unstable_by_key(|zombie| zombie.pid);
    zombies
}

/// The threads of a process; empty once it is gone.
pub fn read_kernel_threads(pid: i32) -> Vec<KernelThread> {
    let mut tids = TaskDirectory::new(pid).list().unwrap_or_default();
    tids.sort_unstable();
    tids.into_iter()
        .map(|tid| read_kernel_thread(pid, tid))
        .collect()
}

/// One thread. Facts that cannot be read are absent.
pub fn read_kernel_thread(pid: i32, tid: i32) -> KernelThread {
    let files = ThreadFiles::open(pid, tid);
    let directory = format!("/proc/{pid}/task/{tid}");
    let wchan = read(&format!("{directory}/wchan"));
    let stack = read(&format!("{directory}/stack")).unwrap_or_default();
    KernelThread {
        tid,
        name: files.name().unwrap_or_default(),
        state: files
            .stat()
            .map_or(ThreadState::Unknown, |(state, _)| state),
        syscall: files
            .whereabouts()
            .ok()
            // A kernel thread has no user-space stack and no system call: all its numbers are 0.
            .filter(|whereabouts| {
                !matches!(
                    whereabouts,
                    Whereabouts::InSyscall {
                        instruction_pointer: 0,
                        ..
                    }
                )
            })
            .and_then(|whereabouts| whereabouts.syscall()),
        wchan: wchan.filter(|name| !name.is_empty() && name != "0"),
        stack: parse_kernel_stack(&stack),
    }
}

fn read(path: &str) -> Option<String> {
    Some(read_text(path, MAX_BYTES)?.trim().to_owned())
}

/// The functions of `/proc/TID/stack`: lines such as `[<0>] futex_wait+0x6b/0x120`.
fn parse_kernel_stack(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| {
        let (_, symbol) = line.split_once("] ")?;
        let name = symbol.split('+').next().unwrap_or(symbol);
        (!name.is_empty()).then(|| name.to_owned())
    });
    lines.take(MAX_KERNEL_FRAMES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_never_answers_is_found_in_time() {
        let (hold, held) = channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        let asked = without_answer_from(&[-11, -12, -13], Duration::from_millis(200), move |pid| {
            if pid == -12 {
                let held = held.lock().expect("not poisoned");
                let _ = held.recv();
            }
        });
        assert_eq!(asked, [-12]);
        drop(hold);
    }

    #[test]
    fn this_process_answers() {
        let pid = std::process::id() as i32;
        assert!(without_answer(&[pid], Duration::from_secs(60)).is_empty());
        let threads = read_kernel_threads(pid);
        assert!(threads.iter().any(|thread| !thread.name.is_empty()));
    }

    #[test]
    fn kernel_stacks_are_names() {
        let text = "[<0>] futex_do_wait+0x38/0x70\n[<0>] __futex_wait+0x91/0x100\nrubbish\n";
        assert_eq!(parse_kernel_stack(text), ["futex_do_wait", "__futex_wait"]);
    }
}
