//! What the system call in which a thread sleeps says of the end of its sleep.

use super::process_info::read_stat;
use super::threads::{FUTEX, RESTART_SYSCALL, ThreadFiles, Whereabouts};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use syscalls::Sysno;

/// The longest line of parents that is followed.
const MAX_PARENTS: usize = 64;

/// Whether a thread sleeps in a futex(2) with a timeout, its fourth argument. A stop makes the
/// kernel continue it as restart_syscall(2), which it does for no futex without one.
pub fn is_timed(pid: i32, tid: i32) -> bool {
    match ThreadFiles::open(pid, tid).whereabouts() {
        Ok(Whereabouts::InSyscall {
            number, arguments, ..
        }) => number == RESTART_SYSCALL || number == FUTEX && arguments[3] != 0,
        _ => false,
    }
}

/// Whether a thread sleeps in a read(2) of a pipe that its own process cannot write to, and one of
/// `others` can that descends from its process: the output of a child, as of a `Popen`.
pub fn reads_from_child(pid: i32, tid: i32, others: &[i32]) -> bool {
    let Ok(Whereabouts::InSyscall {
        number, arguments, ..
    }) = ThreadFiles::open(pid, tid).whereabouts()
    else {
        return false;
    };
    if number != Sysno::read as u32 {
        return false;
    }
    let Ok(pipe) = std::fs::read_link(format!("/proc/{pid}/fd/{}", arguments[0])) else {
        return false;
    };
    pipe.to_string_lossy().starts_with("pipe:[")
        && !may_write(pid, &pipe)
        && others
            .iter()
            .any(|&other| descends_from(other, pid) && may_write(other, &pipe))
}

/// Whether a process has a descriptor of a pipe for writing: the mode of its link says so
/// (proc_pid_fd(5)).
fn may_write(pid: i32, pipe: &Path) -> bool {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
    entries.into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        let is_writable = |path: &Path| {
            let data = path.symlink_metadata();
            data.is_ok_and(|data| data.permissions().mode() & 0o200 != 0)
        };
        std::fs::read_link(&path).is_ok_and(|link| link == pipe) && is_writable(&path)
    })
}

fn descends_from(pid: i32, ancestor: i32) -> bool {
    let parent = |pid: &i32| read_stat(*pid).ok().map(|stat| stat.parent_pid);
    let mut parents = std::iter::successors(parent(&pid), parent).take(MAX_PARENTS);
    parents.any(|parent| parent == ancestor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sample::ThreadState;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// A shell, its pid, and the first line that it prints if it does.
    fn shell(script: &str) -> (Child, i32) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        (child, pid)
    }

    /// Waits until a thread sleeps in this call. One that has ended never does.
    fn until_in(pid: i32, tid: i32, call: u32) {
        let files = ThreadFiles::open(pid, tid);
        while files.whereabouts().unwrap().syscall() != Some(call) {
            assert_ne!(files.stat().unwrap().0, ThreadState::Unknown);
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_output_of_a_child_is_told_apart_from_other_pipes() {
        // A substitution reads the output of a child, which ends with its input.
        let (mut reader, pid) = shell("exec 3>&1 4<&0; x=$(sh -c 'echo $$ >&3; read x <&4')");
        let mut line = String::new();
        let mut stdout = BufReader::new(reader.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let child: i32 = line.trim().parse().unwrap();
        let read = Sysno::read as u32;
        until_in(pid, pid, read);
        until_in(child, child, read);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(reads_from_child(pid, pid, &[own, child]));
        assert!(!reads_from_child(pid, pid, &[own, pid]));
        // The child reads a pipe of the test.
        assert!(!reads_from_child(child, child, &[own, pid, child]));
        assert!(!is_timed(pid, pid));
        drop(reader.stdin.take());
        reader.wait().unwrap();
    }

    #[test]
    fn a_wait_with_a_timeout_is_told_apart_from_one_without() {
        let pid = i32::try_from(std::process::id()).unwrap();
        for timed in [true, false] {
            let (sender, receiver) = channel::<()>();
            let (tell, told) = channel();
            let waiting = std::thread::spawn(move || {
                tell.send(nix::unistd::gettid().as_raw()).unwrap();
                match timed {
                    true => receiver.recv_timeout(Duration::from_secs(300)).is_ok(),
                    false => receiver.recv().is_ok(),
                }
            });
            let tid = told.recv().unwrap();
            until_in(pid, tid, FUTEX);
            // It may have slept for a lock of the allocator.
            while timed && !is_timed(pid, tid) && !waiting.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(is_timed(pid, tid), timed);
            sender.send(()).unwrap();
            assert!(waiting.join().unwrap());
        }
    }
}
