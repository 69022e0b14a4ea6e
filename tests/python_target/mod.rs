//! Real interpreters as targets: started, ready, read through `process_vm_readv`, and ended with
//! the test.

#![allow(dead_code, unreachable_pub)]

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use torchspy::memory::{Memory, ReadError};
use torchspy::python::discover::{
    DiscoverError, Interpreter, PythonImage, could_be_python, discover,
};

/// An interpreter to test on.
#[derive(Clone, Debug)]
pub struct Python {
    /// Its path, within `root`.
    pub path: String,
    /// The directory that it runs under by chroot.
    pub root: Option<PathBuf>,
}

impl Python {
    /// `3.11` and so on, or `debian` for the system's own. `None`, with a word on stderr, where it
    /// is not installed.
    pub fn find(name: &str) -> Option<Self> {
        let found = crate::installed::rooted_python(name);
        found.map(|(path, root)| Self { path, root })
    }

    /// Starts `program` (a path) with `arguments`.
    pub fn start(&self, program: &Path, arguments: &[&str]) -> Target {
        self.start_source(&std::fs::read_to_string(program).unwrap(), arguments)
    }

    /// The same with more variables of the environment.
    pub fn start_with(
        &self,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Target {
        let mut command = self.command();
        command.envs(environment.iter().copied());
        let source = std::fs::read_to_string(program).unwrap();
        self.start_as(command, &source, arguments)
    }

    /// Starts a program.
    pub fn start_source(&self, source: &str, arguments: &[&str]) -> Target {
        self.start_as(self.command(), source, arguments)
    }

    /// Starts a shell that has stopped when this returns, and runs the program once it goes on.
    pub fn start_stopped(&self, source: &str) -> Target {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "kill -STOP $$; exec \"$@\"", "sh", &self.path]);
        let target = self.start_as(shell, source, &[]);
        let pid = Pid::from_raw(target.pid());
        nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WUNTRACED)).unwrap();
        target
    }

    fn start_as(&self, mut child: Command, source: &str, arguments: &[&str]) -> Target {
        let root = self.root.clone().unwrap_or_else(|| "/".into());
        let directory = tempfile::tempdir_in(root.join("tmp")).unwrap();
        let script = directory.path().join("target.py");
        std::fs::write(&script, source).unwrap();
        child
            .arg(Path::new("/").join(script.strip_prefix(&root).unwrap()))
            .args(arguments);
        let mut child = child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take().unwrap();
        Target {
            child,
            input,
            output,
            directory: Some(directory),
            exe_root: root,
        }
    }

    /// The interpreter as a command, in its root.
    pub fn command(&self) -> Command {
        match &self.root {
            None => Command::new(&self.path),
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&self.path);
                command
            }
        }
    }
}

/// A running program; it is killed when this is dropped.
pub struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    directory: Option<tempfile::TempDir>,
    exe_root: PathBuf,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Target {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Lets a stopped program go on.
    pub fn go_on(&self) {
        nix::sys::signal::kill(Pid::from_raw(self.pid()), nix::sys::signal::Signal::SIGCONT)
            .unwrap();
    }

    /// The directory that it takes for its root.
    pub fn root(&self) -> &Path {
        &self.exe_root
    }

    pub fn memory(&self) -> LiveMemory {
        LiveMemory(Pid::from_raw(self.pid()))
    }

    /// Gives the program a line to read.
    pub fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line that the program prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(
            self.output.read_line(&mut line).unwrap() > 0,
            "the program ended"
        );
        line.trim_end().to_owned()
    }

    /// The lines that it prints before `ready`.
    pub fn ready(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            if line.split(' ').next() == Some("ready") {
                return lines;
            }
            lines.push(line);
        }
    }

    /// Waits until each thread sleeps in `clock_nanosleep`, or `select` or `pselect6` (`time.sleep`
    /// of 3.10).
    pub fn wait_asleep(&self, threads: &[u64]) {
        for &thread in threads {
            self.wait_in_call(thread, &["230 ", "23 ", "270 "]);
        }
    }

    /// Waits until the thread is in one of these system calls, each as its number and a space
    /// (`/proc/PID/task/TID/syscall`).
    pub fn wait_in_call(&self, thread: u64, calls: &[&str]) {
        let path = format!("/proc/{thread}/syscall");
        let started = std::time::Instant::now();
        let mut state = String::new();
        while !calls.iter().any(|call| state.starts_with(call)) {
            assert!(
                started.elapsed().as_secs() < 60,
                "the thread is in no call of {calls:?}: {state}"
            );
            state = std::fs::read_to_string(&path).unwrap();
            std::thread::yield_now();
        }
    }

    pub fn discover(&self) -> Result<Interpreter, DiscoverError> {
        let images = self.images();
        let images: Vec<_> = images.iter().map(Image::as_python).collect();
        discover(&images, &self.memory())
    }

    /// The executable and every file that could be Python.
    pub fn images(&self) -> Vec<Image> {
        let exe = std::fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap();
        let exe = Path::new("/").join(exe.strip_prefix(&self.exe_root).unwrap());
        let mut images: Vec<Image> = Vec::new();
        for mapping in self.mappings() {
            let inside = mapping
                .path
                .strip_prefix(self.exe_root.to_str().unwrap())
                .unwrap_or(&mapping.path);
            let path = Path::new("/")
                .join(inside.trim_start_matches('/'))
                .to_string_lossy()
                .into_owned();
            let wanted = Path::new(&path) == exe || could_be_python(&path);
            if !wanted || !mapping.executable || images.iter().any(|image| image.path == path) {
                continue;
            }
            let bytes = std::fs::read(format!("/proc/{}/root{path}", self.pid())).unwrap();
            let load_bias = load_bias(&bytes, &mapping);
            images.push(Image {
                path,
                load_bias,
                bytes,
            });
        }
        images
    }

    pub fn mappings(&self) -> Vec<Mapping> {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        text.lines()
            .map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (start, end) = fields[0].split_once('-').unwrap();
                let hex = |text| u64::from_str_radix(text, 16).unwrap();
                Mapping {
                    start: hex(start),
                    end: hex(end),
                    executable: fields[1].contains('x'),
                    offset: hex(fields[2]),
                    path: fields
                        .get(5..)
                        .map(|path| path.join(" "))
                        .unwrap_or_default(),
                }
            })
            .collect()
    }
}

/// Where the executable segment lies, less where its file says that it does.
fn load_bias(bytes: &[u8], mapping: &Mapping) -> u64 {
    let file = goblin::elf::Elf::parse(bytes).unwrap();
    let segment = file.program_headers.iter().find(|header| {
        header.p_type == goblin::elf::program_header::PT_LOAD
            && header.p_offset & !0xfff == mapping.offset
    });
    mapping
        .start
        .wrapping_sub(segment.unwrap().p_vaddr & !0xfff)
}

pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub executable: bool,
    pub offset: u64,
    pub path: String,
}

pub struct Image {
    pub path: String,
    pub load_bias: u64,
    pub bytes: Vec<u8>,
}

impl Image {
    pub fn as_python(&self) -> PythonImage<'_> {
        PythonImage {
            path: &self.path,
            load_bias: self.load_bias,
            bytes: &self.bytes,
        }
    }
}

/// A live process's memory.
#[derive(Clone, Copy)]
pub struct LiveMemory(Pid);

impl Memory for LiveMemory {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let length = buffer.len();
        let remote = [RemoteIoVec {
            base: address as usize,
            len: length,
        }];
        match process_vm_readv(self.0, &mut [IoSliceMut::new(buffer)], &remote) {
            Ok(read) if read == length => Ok(()),
            Ok(_) => Err(ReadError::Unmapped(address)),
            Err(nix::Error::ESRCH) => Err(ReadError::Gone),
            Err(nix::Error::EPERM) => Err(ReadError::PermissionDenied),
            Err(_) => Err(ReadError::Unmapped(address)),
        }
    }
}
