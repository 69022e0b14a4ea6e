//! Live targets for the tests of native code: memory, registers by ptrace, and gdb's opinion.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses its part"
)]

use nix::sys::ptrace;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use torchspy::memory::{Memory, ReadError, SnapshotMemory};
use torchspy::model::mapping::Mapping;
use torchspy::model::registers::Registers;
use torchspy::native::image::ModuleBytes;
use torchspy::native::loaded::{LoadedModules, ModuleOpener};
use torchspy::native::modules::ModuleStore;
use torchspy::os::elf_file::ElfFile;
use torchspy::os::maps::parse_maps;

pub use crate::installed::torch_python;

/// `report --full` of a recording.
pub fn full_report(recording: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(["report", "--full"])
        .arg(recording)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Memory of a live process.
pub struct LiveMemory(pub i32);

impl Memory for LiveMemory {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let remote = [RemoteIoVec {
            base: address as usize,
            len: buffer.len(),
        }];
        let length = buffer.len();
        match process_vm_readv(
            Pid::from_raw(self.0),
            &mut [IoSliceMut::new(buffer)],
            &remote,
        ) {
            Ok(read) if read == length => Ok(()),
            _ => Err(ReadError::Unmapped(address)),
        }
    }
}

/// Opens a live process's files.
pub struct LiveOpener(pub i32);

impl ModuleOpener for LiveOpener {
    fn open(&self, mapping: &Mapping) -> Option<ModuleBytes> {
        let file = ElfFile::open(self.0, &mapping.path).ok()?;
        Some(Arc::new(file))
    }

    fn open_mapped(&self, mapping: &Mapping) -> Option<ModuleBytes> {
        let file = ElfFile::open_mapped(self.0, mapping).ok()?;
        Some(Arc::new(file))
    }
}

/// A child that said "ready" on its standard output. It is killed when this is dropped.
pub struct Target {
    child: Child,
    pub pid: i32,
}

impl Target {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pid = i32::try_from(child.id()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            let read = lines.read_line(&mut line).unwrap();
            assert!(
                read > 0,
                "{command:?} ended before it was ready: {:?}",
                child.wait()
            );
        }
        // The pipe stays open: a target that prints more must not die of it.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self { child, pid }
    }

    pub fn mappings(&self) -> Vec<Mapping> {
        parse_maps(&std::fs::read(format!("/proc/{}/maps", self.pid)).unwrap())
    }

    pub fn modules(&self) -> LoadedModules {
        let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
        modules.refresh(
            &self.mappings(),
            &LiveOpener(self.pid),
            &LiveMemory(self.pid),
        );
        modules
    }

    pub fn tids(&self) -> Vec<i32> {
        let mut tids: Vec<i32> = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        tids.sort_unstable();
        tids
    }

    /// Waits until at least `count` threads are asleep in system call `number`, for each pair.
    pub fn wait_for_syscalls(&self, wanted: &[(i64, usize)]) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        loop {
            let asleep: Vec<i64> = self
                .tids()
                .into_iter()
                .filter_map(|tid| self.syscall(tid))
                .collect();
            let reached = |&(number, count): &(i64, usize)| {
                asleep.iter().filter(|&&here| here == number).count() >= count
            };
            if wanted.iter().all(reached) {
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "asleep in {asleep:?}, wanted {wanted:?}"
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Waits until no thread runs: those of an OpenMP pool spin for a while before they sleep.
    pub fn wait_until_still(&self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while self.tids().into_iter().any(|tid| self.is_running(tid)) {
            assert!(std::time::Instant::now() < deadline, "still running");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Whether a thread runs or waits for a processor.
    pub fn is_running(&self, tid: i32) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.pid))
            .unwrap_or_default();
        text.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('R'))
    }

    /// The system call that a thread sleeps in.
    fn syscall(&self, tid: i32) -> Option<i64> {
        let text =
            std::fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", self.pid)).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// `comm` of a thread.
    pub fn thread_name(&self, tid: i32) -> String {
        let path = format!("/proc/{}/task/{tid}/comm", self.pid);
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread that was stopped for a moment: registers and what its stack held.
pub struct Capture {
    pub registers: Registers,
    pub stack: SnapshotMemory,
}

/// Stops thread `tid`, copies its registers and the stack above its stack pointer (at most `limit`
/// bytes, up to the end of the mapping), lets it go on. `None` if the thread is gone.
pub fn capture(target: &Target, tid: i32, mappings: &[Mapping], limit: u64) -> Option<Capture> {
    let thread = Pid::from_raw(tid);
    ptrace::seize(thread, ptrace::Options::empty()).ok()?;
    ptrace::interrupt(thread).ok()?;
    waitpid(thread, Some(WaitPidFlag::__WALL)).ok()?;
    let captured = ptrace::getregs(thread).ok().map(|raw| {
        let registers = to_registers(&raw);
        let mut stack = SnapshotMemory::default();
        let end = mappings
            .iter()
            .find(|mapping| mapping.contains(raw.rsp))
            .map_or(raw.rsp, |mapping| mapping.end)
            .min(raw.rsp + limit);
        let length = usize::try_from(end - raw.rsp).unwrap();
        if let Ok(bytes) = LiveMemory(target.pid).read_bytes(raw.rsp, length) {
            stack.insert(raw.rsp, bytes);
        }
        Capture { registers, stack }
    });
    ptrace::detach(thread, None).ok()?;
    captured
}

/// System V ABI, figure 3.36.
pub fn to_registers(raw: &nix::libc::user_regs_struct) -> Registers {
    let mut registers = Registers::unknown();
    let values = [
        raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9,
        raw.r10, raw.r11, raw.r12, raw.r13, raw.r14, raw.r15, raw.rip,
    ];
    for (number, value) in values.into_iter().enumerate() {
        registers.set(number, value);
    }
    registers
}

/// The program counters of a thread's frames, leaf first, and what gdb calls the functions.
pub type GdbStack = Vec<(u64, String)>;

/// What gdb says of each thread, by tid; `None` (with the reason printed) where gdb cannot be run.
/// Frames of inlined functions and of tail calls, which are on no stack, are left out.
pub fn gdb_stacks(pid: i32) -> Option<Vec<(i32, GdbStack)>> {
    gdb_stacks_below(pid, Path::new("/"))
}

/// The same of a process whose root directory is `root`: gdb looks for its files there.
pub fn gdb_stacks_below(pid: i32, root: &Path) -> Option<Vec<(i32, GdbStack)>> {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/native/gdb_stacks.py"
    );
    let output = Command::new("gdb")
        .args([
            "-nx",
            "-batch",
            "-ex",
            "set debuginfod enabled off",
            "-ex",
            &format!("set sysroot {}", root.display()),
            "-p",
            &pid.to_string(),
        ])
        .args([
            "-ex",
            "set backtrace past-main on",
            "-ex",
            "set backtrace past-entry on",
            "-x",
            script,
        ])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: gdb cannot be run: {error}");
            return None;
        }
    };
    let mut threads: Vec<(i32, GdbStack)> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match (words.as_slice(), threads.last_mut()) {
            (["thread", tid], _) => threads.push((tid.parse().unwrap(), Vec::new())),
            (["frame", pc, name], Some((_, frames))) => {
                frames.push((pc.parse().unwrap(), (*name).to_owned()))
            }
            _ => {}
        }
    }
    assert!(!threads.is_empty(), "gdb named no thread: {output:?}");
    Some(threads)
}

/// Compiles `tests/programs/native/NAME.c` with gcc into a folder of its own, and `bare.c` along
/// with it, without unwind tables, if `with_bare`; `None` (with the reason printed) without gcc.
pub fn compile(
    name: &str,
    flags: &[&str],
    with_bare: bool,
) -> Option<(tempfile::TempDir, PathBuf)> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/native");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let mut link = Command::new("gcc");
    link.args(flags)
        .arg("-o")
        .arg(&program)
        .arg(sources.join(format!("{name}.c")))
        .arg("-lpthread");
    if with_bare {
        let object = folder.path().join("bare.o");
        let mut bare = Command::new("gcc");
        bare.args([
            "-O2",
            "-fomit-frame-pointer",
            "-fno-asynchronous-unwind-tables",
            "-fno-unwind-tables",
            "-fcf-protection=none",
        ]);
        bare.arg("-c")
            .arg(sources.join("bare.c"))
            .arg("-o")
            .arg(&object);
        run_gcc(&mut bare)?;
        link.arg(object);
    }
    run_gcc(&mut link)?;
    Some((folder, program))
}

fn run_gcc(command: &mut Command) -> Option<()> {
    match command.status() {
        Ok(status) => assert!(status.success(), "{command:?}"),
        Err(error) => {
            println!("skipped: gcc cannot be run: {error}");
            return None;
        }
    }
    Some(())
}
