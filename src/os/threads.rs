//! What the kernel reports of a process's threads without stopping them.

use super::descriptors::may_keep;
use super::process_info::{read_stat, status_field};
use crate::arch::system_calls::{Sysno, number};
use crate::model::registers::Registers;
use crate::model::sample::ThreadState;
use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::LazyLock;

/// The fields of `/proc/PID/task/TID/schedstat`: they move only when the thread is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU, ns. For a running thread it advances only with the scheduler's tick.
    pub run_ns: u64,
    /// Time in the run queue, ns.
    pub queue_ns: u64,
    /// How often it was put on a CPU.
    pub slices: u64,
}

impl SchedStat {
    /// Whether the kernel keeps these at all: without CONFIG_SCHED_INFO all are 0.
    pub fn is_kept(&self) -> bool {
        self.slices != 0
    }
}

/// Whether this kernel keeps [`SchedStat`]. That of a thread alone does not tell: a new one that
/// waits for its first time slice has zeros, too.
pub fn keeps_schedstat() -> bool {
    static KEPT: LazyLock<bool> = LazyLock::new(|| {
        let own = std::process::id() as i32;
        let found = ThreadFiles::open(own, own).schedstat();
        found.is_ok_and(|found| found.is_kept())
    });
    *KEPT
}

/// The number of `futex`.
pub const FUTEX: u32 = number(Sysno::futex);
/// The number of `restart_syscall`: how the kernel continues a sleep that a stop interrupted.
pub const RESTART_SYSCALL: u32 = number(Sysno::restart_syscall);

/// What `/proc/PID/task/TID/syscall` reports for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// On a CPU, or runnable.
    Running,
    /// Off the CPU in a system call.
    InSyscall {
        number: u32,
        arguments: [u64; 6],
        stack_pointer: u64,
        instruction_pointer: u64,
    },
    /// Off the CPU, but not in a system call: in a page fault, for example.
    Blocked {
        stack_pointer: u64,
        instruction_pointer: u64,
    },
}

impl Whereabouts {
    /// The two registers that are known without a stop.
    pub fn registers(&self) -> Option<Registers> {
        match *self {
            Whereabouts::Running => None,
            Whereabouts::InSyscall {
                stack_pointer,
                instruction_pointer,
                ..
            }
            | Whereabouts::Blocked {
                stack_pointer,
                instruction_pointer,
            } => Some(Registers::of_sleeper(stack_pointer, instruction_pointer)),
        }
    }

    /// The system call's number.
    pub fn syscall(&self) -> Option<u32> {
        match *self {
            Whereabouts::InSyscall { number, .. } => Some(number),
            _ => None,
        }
    }

    /// Whether a thread that was here may have the same stack `now`: it sleeps in the same system
    /// call, with the same stack pointer, whatever it waits for.
    pub fn is_at_same_place(self, now: Self) -> bool {
        self.syscall().is_some()
            && self.syscall() == now.syscall()
            && self.registers() == now.registers()
    }

    /// The address that it waits at, in a `futex` call.
    pub fn futex_address(&self) -> Option<u64> {
        match *self {
            Self::InSyscall {
                number: FUTEX,
                arguments: [address, ..],
                ..
            } => Some(address),
            _ => None,
        }
    }

    /// Whether a thread that was here is in the same sleep `now`: a stop in between may have
    /// restarted its call (ptrace(2)).
    pub fn is_same_sleep(self, now: Self) -> bool {
        match (self, now) {
            (
                Self::InSyscall {
                    number: a,
                    arguments: x,
                    stack_pointer: p,
                    instruction_pointer: i,
                },
                Self::InSyscall {
                    number: b,
                    arguments: y,
                    stack_pointer: q,
                    instruction_pointer: j,
                },
            ) => (a == b && x == y || b == RESTART_SYSCALL) && p == q && i == j,
            (then @ Self::Blocked { .. }, now) => then == now,
            _ => false,
        }
    }
}

/// A file of procfs that is kept open and read from its start each time; opened for each read if
/// few descriptors are left.
#[derive(Debug)]
pub(super) struct ProcFile {
    path: String,
    file: Option<File>,
}

impl ProcFile {
    pub(super) fn new(path: String) -> Self {
        let file = File::open(&path).ok().filter(may_keep);
        Self { path, file }
    }

    pub(super) fn read<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let length = match &self.file {
            Some(file) => file.read_at(buffer, 0)?,
            None => File::open(&self.path)?.read_at(buffer, 0)?,
        };
        Ok(&buffer[..length])
    }
}

/// The files of one thread.
#[derive(Debug)]
pub struct ThreadFiles {
    directory: String,
    schedstat: ProcFile,
    syscall: ProcFile,
    /// Opened at the first read, which most threads never need.
    stat: OnceCell<ProcFile>,
    status: OnceCell<ProcFile>,
}

impl ThreadFiles {
    /// Opens the files of thread `tid` of process `pid`. Never fails: reads do.
    pub fn open(pid: i32, tid: i32) -> Self {
        let directory = format!("/proc/{pid}/task/{tid}");
        Self {
            schedstat: ProcFile::new(format!("{directory}/schedstat")),
            syscall: ProcFile::new(format!("{directory}/syscall")),
            stat: OnceCell::new(),
            status: OnceCell::new(),
            directory,
        }
    }

    /// CPU time, run queue time and time slices of the thread; all 0 if the kernel has no such
    /// file. About 1 µs.
    ///
    /// # Errors
    /// ESRCH or ENOENT once the thread has ended.
    pub fn schedstat(&self) -> io::Result<SchedStat> {
        let mut buffer = [0; 96];
        match self.schedstat.read(&mut buffer) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && Path::new(&self.directory).exists() =>
            {
                Ok(SchedStat::default())
            }
            read => Ok(parse_schedstat(read?)),
        }
    }

    /// Whether the thread runs, or the system call in which it sleeps, with its registers. About 2
    /// µs.
    ///
    /// # Errors
    /// EPERM without permission to trace it; ESRCH or ENOENT once it has ended.
    pub fn whereabouts(&self) -> io::Result<Whereabouts> {
        let mut buffer = [0; 256];
        parse_syscall(self.syscall.read(&mut buffer)?).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "unknown form of /proc/PID/task/TID/syscall",
            )
        })
    }

    /// State and start time (clock ticks since boot). About 4 µs.
    ///
    /// # Errors
    /// As [`ThreadFiles::schedstat`].
    pub fn stat(&self) -> io::Result<(ThreadState, u64)> {
        self.read_stat(parse_stat)
    }

    /// The CPU that the thread runs on, or last ran on. About 4 µs.
    ///
    /// # Errors
    /// As [`ThreadFiles::schedstat`].
    pub fn cpu(&self) -> io::Result<Option<usize>> {
        self.read_stat(|line| stat_field(line, 39).and_then(|cpu| usize::try_from(cpu).ok()))
    }

    fn read_stat<T>(&self, parse: impl Fn(&[u8]) -> T) -> io::Result<T> {
        let mut buffer = [0; 1024];
        let file = self
            .stat
            .get_or_init(|| ProcFile::new(format!("{}/stat", self.directory)));
        Ok(parse(file.read(&mut buffer)?))
    }

    /// How often the thread gave up its CPU by itself: to sleep, or because a tracer stopped it.
    /// `None` if it cannot be read. About 10 µs.
    pub fn voluntary_switches(&self) -> Option<u64> {
        let mut buffer = [0; 4096];
        let file = self
            .status
            .get_or_init(|| ProcFile::new(format!("{}/status", self.directory)));
        let text = file.read(&mut buffer).ok()?;
        let mut lines = text.split(|&byte| byte == b'\n').rev();
        let count = lines.find_map(|line| line.strip_prefix(b"voluntary_ctxt_switches:"))?;
        std::str::from_utf8(count).ok()?.trim().parse().ok()
    }

    /// The thread's name.
    ///
    /// # Errors
    /// As [`ThreadFiles::schedstat`].
    pub fn name(&self) -> io::Result<String> {
        let name = std::fs::read(format!("{}/comm", self.directory))?;
        Ok(String::from_utf8_lossy(&name)
            .trim_end_matches('\n')
            .to_owned())
    }

    /// The pid of the thread's tracer, 0 for none; `None` if it cannot be read.
    pub fn tracer_pid(&self) -> Option<i32> {
        status_field(&self.directory, "TracerPid:")?.parse().ok()
    }

    /// The tid in the thread's own pid namespace, the last of `NSpid`; `None` if the kernel does
    /// not report it.
    pub fn inner_tid(&self) -> Option<i32> {
        let tids = status_field(&self.directory, "NSpid:")?;
        tids.split_ascii_whitespace().last()?.parse().ok()
    }
}

/// The `task` directory of a process.
#[derive(Debug)]
pub struct TaskDirectory {
    path: String,
    /// Kept open: fstat of it takes a third of the time of stat by path.
    directory: Option<File>,
}

impl TaskDirectory {
    pub fn new(pid: i32) -> Self {
        let path = format!("/proc/{pid}/task");
        Self {
            directory: File::open(&path).ok(),
            path,
        }
    }

    /// A number that changes when the number of threads changes, and when the process ends: the
    /// directory's link count.
    ///
    /// # Errors
    /// The process had ended before the first call.
    pub fn link_count(&self) -> io::Result<u64> {
        let metadata = match &self.directory {
            Some(directory) => directory.metadata(),
            None => std::fs::metadata(&self.path),
        };
        Ok(metadata?.nlink())
    }

    /// The tids of all threads.
    ///
    /// # Errors
    /// ENOENT once the process is gone.
    pub fn list(&self) -> io::Result<Vec<i32>> {
        let mut tids = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            if let Ok(tid) = entry?.file_name().to_string_lossy().parse() {
                tids.push(tid);
            }
        }
        Ok(tids)
    }
}

/// The kernel's names of a process's threads; none once it has ended.
pub fn thread_names(pid: i32) -> Vec<String> {
    let tids = TaskDirectory::new(pid).list().unwrap_or_default();
    tids.into_iter()
        .filter_map(|tid| ThreadFiles::open(pid, tid).name().ok())
        .collect()
}

/// A living thread of process `pid`: the first one, unless that is dead while others live. /proc
/// shows no memory, files or root of a dead thread, and `/proc/TID` serves as well as `/proc/PID`.
pub fn living_task(pid: i32) -> i32 {
    let lives = |tid: i32| read_stat(tid).is_ok_and(|stat| !stat.is_zombie());
    if lives(pid) {
        return pid;
    }
    let tids = TaskDirectory::new(pid).list().unwrap_or_default();
    tids.into_iter().find(|&tid| lives(tid)).unwrap_or(pid)
}

fn parse_schedstat(text: &[u8]) -> SchedStat {
    let mut fields = text
        .split(|byte| byte.is_ascii_whitespace())
        .filter_map(parse_decimal);
    SchedStat {
        run_ns: fields.next().unwrap_or(0),
        queue_ns: fields.next().unwrap_or(0),
        slices: fields.next().unwrap_or(0),
    }
}

fn parse_decimal(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10)
            .then(|| number.checked_mul(10)?.checked_add(u64::from(digit)))
            .flatten()
    })
}

fn parse_hex(field: &str) -> Option<u64> {
    u64::from_str_radix(field.strip_prefix("0x")?, 16).ok()
}

fn parse_syscall(text: &[u8]) -> Option<Whereabouts> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    if text == "running" {
        return Some(Whereabouts::Running);
    }
    let mut fields = text.split(' ');
    let number: i64 = fields.next()?.parse().ok()?;
    if number < 0 {
        return Some(Whereabouts::Blocked {
            stack_pointer: parse_hex(fields.next()?)?,
            instruction_pointer: parse_hex(fields.next()?)?,
        });
    }
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = parse_hex(fields.next()?)?;
    }
    Some(Whereabouts::InSyscall {
        number: u32::try_from(number).ok()?,
        arguments,
        stack_pointer: parse_hex(fields.next()?)?,
        instruction_pointer: parse_hex(fields.next()?)?,
    })
}

/// State and start time out of a `stat` line.
fn parse_stat(text: &[u8]) -> (ThreadState, u64) {
    let state = match stat_fields(text).next().and_then(|field| field.first()) {
        Some(b'R') => ThreadState::Running,
        Some(b'S' | b'I') => ThreadState::Sleeping,
        Some(b'D') => ThreadState::Uninterruptible,
        Some(b'T' | b't') => ThreadState::Stopped,
        _ => ThreadState::Unknown,
    };
    (state, stat_field(text, 22).unwrap_or(0))
}

/// A number of a `stat` line, by its field number in proc_pid_stat(5).
fn stat_field(text: &[u8], number: usize) -> Option<u64> {
    parse_decimal(stat_fields(text).nth(number.checked_sub(FIRST_STAT_FIELD)?)?)
}

/// The state is field 3.
const FIRST_STAT_FIELD: usize = 3;

/// The fields from the state on. The name before it may contain spaces and parentheses: fields
/// count from the last `)`.
fn stat_fields(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let after_name = text
        .iter()
        .rposition(|&byte| byte == b')')
        .map_or(&text[..0], |position| &text[position + 1..]);
    after_name
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|field| !field.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_prints() {
        assert_eq!(
            parse_schedstat(b"1234 56 7\n"),
            SchedStat {
                run_ns: 1234,
                queue_ns: 56,
                slices: 7
            }
        );
        assert!(!parse_schedstat(b"0 0 0\n").is_kept());
        assert_eq!(parse_syscall(b"running\n"), Some(Whereabouts::Running));
        assert_eq!(
            parse_syscall(b"-1 0x7f0 0x55\n"),
            Some(Whereabouts::Blocked {
                stack_pointer: 0x7f0,
                instruction_pointer: 0x55
            })
        );
        let asleep = parse_syscall(b"202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc 0x7f1\n");
        assert_eq!(
            asleep.and_then(|whereabouts| whereabouts.syscall()),
            Some(202)
        );
        assert_eq!(parse_syscall(b"202 0x1"), None);
        assert_eq!(parse_syscall(b""), None);
    }

    #[test]
    fn stat_survives_names_with_parentheses() {
        let line = b"42 (a) R (b) S 1 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1 1\n";
        assert_eq!(parse_stat(line), (ThreadState::Sleeping, 98765));
        assert_eq!(parse_stat(b""), (ThreadState::Unknown, 0));
        assert_eq!(stat_field(line, 22), Some(98765));
        assert_eq!(stat_field(line, 39), None);
    }

    #[test]
    fn a_kernel_without_schedstat_is_told_from_a_thread_that_is_gone() {
        let pid = std::process::id() as i32;
        let mut files = ThreadFiles::open(pid, nix::unistd::gettid().as_raw());
        files.schedstat = ProcFile::new(format!("{}/no_such_file", files.directory));
        let read = files.schedstat().expect("the thread is there");
        assert!(!read.is_kept());
        let gone = ThreadFiles::open(pid, i32::MAX).schedstat();
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn reads_this_very_thread() {
        let pid = std::process::id() as i32;
        let tids = TaskDirectory::new(pid).list().expect("own task directory");
        assert!(tids.contains(&nix::unistd::gettid().as_raw()));
        let files = ThreadFiles::open(pid, nix::unistd::gettid().as_raw());
        // For the calling thread the kernel reports the system call that reads the file.
        assert_eq!(
            files.whereabouts().expect("own syscall file").syscall(),
            Some(nix::libc::SYS_pread64 as u32)
        );
        assert!(files.stat().expect("own stat").1 > 0);
        assert!(files.cpu().expect("own stat").is_some());
        assert_eq!(files.inner_tid(), Some(nix::unistd::gettid().as_raw()));
    }
}
