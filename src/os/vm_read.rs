//! Live memory of another process, by `process_vm_readv`, or by `/proc/PID/mem` where that may wait
//! for good.

use super::host::{kernel_release, kernel_version};
use super::threads::living_task;
use crate::memory::{Memory, ReadError, ReadRequest};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{LazyLock, Mutex};

/// Longest vector that the kernel takes in one call (UIO_MAXIOV).
const MAX_BATCH: usize = 1024;
/// Longest vector that [`ProcessMemory::read_vector`] takes.
pub const MAX_VECTOR: usize = 128;

/// Whether `process_vm_readv` takes a lock that an exec of its target holds until the other threads
/// of the target have ended and were waited for. If torchspy has stopped one of these, the two wait
/// for each other: `cred_guard_mutex` before Linux 5.7, which has `exec_update_mutex` in its place
/// (eea9673250db, "exec: Add exec_update_mutex to replace cred_guard_mutex"). The file is checked
/// when it is opened, and its reads take no such lock.
static WAITS_FOR_EXEC: LazyLock<bool> =
    LazyLock::new(|| kernel_version(&kernel_release()).is_some_and(|version| version < (5, 7)));

/// Memory of a live process. Reading takes the target's mmap lock for reading; nothing is written.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: i32,
    /// The thread through which it is read. A dead thread has no memory, not even the first thread
    /// of a process.
    through: AtomicI32,
    /// Its `/proc/PID/mem`, if that is what is read.
    file: Option<Mutex<File>>,
}

impl ProcessMemory {
    /// Memory of the process, or of the thread, `pid`.
    pub fn new(pid: i32) -> Self {
        let file = WAITS_FOR_EXEC.then(|| open(pid).ok()).flatten();
        Self::with(pid, file)
    }

    fn with(pid: i32, file: Option<File>) -> Self {
        Self {
            pid,
            through: AtomicI32::new(pid),
            file: file.map(Mutex::new),
        }
    }

    /// After an exec: what was opened between a vfork and that is the parent's memory.
    pub fn open_again(&self) {
        if let Some(file) = &self.file
            && let (Ok(mut file), Ok(new)) = (file.lock(), open(living_task(self.pid)))
        {
            *file = new;
        }
    }

    /// As `process_vm_readv`, through another thread if the current one is dead.
    pub(super) fn read(
        &self,
        local: &mut [IoSliceMut<'_>],
        remote: &[RemoteIoVec],
    ) -> Result<usize, Errno> {
        if let Some(file) = &self.file {
            // Nothing panics while it is locked.
            let mut file = file.lock().map_err(|_| Errno::EFAULT)?;
            return self.read_file(&mut file, local, remote);
        }
        let through = self.through.load(Ordering::Relaxed);
        match process_vm_readv(Pid::from_raw(through), local, remote) {
            Err(Errno::ESRCH) => {
                let living = living_task(self.pid);
                if living == through {
                    return Err(Errno::ESRCH);
                }
                self.through.store(living, Ordering::Relaxed);
                process_vm_readv(Pid::from_raw(living), local, remote)
            }
            result => result,
        }
    }

    /// As `process_vm_readv`, of ranges that are as long as the buffers.
    fn read_file(
        &self,
        file: &mut File,
        local: &mut [IoSliceMut<'_>],
        remote: &[RemoteIoVec],
    ) -> Result<usize, Errno> {
        let mut count = 0;
        for (buffer, range) in local.iter_mut().zip(remote) {
            let read = match file.read_at(buffer, range.base as u64) {
                // What it was opened for has ended, or called exec.
                Ok(0) if !buffer.is_empty() => {
                    *file = open(living_task(self.pid)).map_err(|_| Errno::ESRCH)?;
                    file.read_at(buffer, range.base as u64)
                }
                read => read,
            };
            match read {
                Ok(length) if length == buffer.len() => count += length,
                Ok(length) if count + length > 0 => return Ok(count + length),
                Err(_) if count > 0 => return Ok(count),
                Ok(_) => return Err(Errno::ESRCH),
                // Of addresses that are not mapped: EIO.
                Err(error) => {
                    return Err(match error.raw_os_error().map(Errno::from_raw) {
                        Some(Errno::EIO) | None => Errno::EFAULT,
                        Some(errno) => errno,
                    });
                }
            }
        }
        Ok(count)
    }

    /// Fills `buffers` from `addresses` in one system call and returns how many bytes arrived, in
    /// order: the kernel stops at the first page that is not mapped. Lengths are those of the
    /// buffers.
    ///
    /// # Errors
    /// [`ReadError`] if nothing could be read.
    pub fn read_vector(
        &self,
        addresses: &[u64],
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<usize, ReadError> {
        let mut remote = [RemoteIoVec { base: 0, len: 0 }; MAX_VECTOR];
        let count = buffers.len().min(addresses.len()).min(remote.len());
        for ((slot, &address), buffer) in remote.iter_mut().zip(addresses).zip(buffers.iter()) {
            *slot = RemoteIoVec {
                base: address as usize,
                len: buffer.len(),
            };
        }
        let first = addresses.first().copied().unwrap_or(0);
        self.read(&mut buffers[..count], &remote[..count])
            .map_err(|errno| error_of(errno, first))
    }
}

fn open(tid: i32) -> io::Result<File> {
    File::open(format!("/proc/{tid}/mem"))
}

pub(super) fn error_of(errno: Errno, address: u64) -> ReadError {
    match errno {
        Errno::EPERM | Errno::EACCES => ReadError::PermissionDenied,
        Errno::ESRCH => ReadError::Gone,
        _ => ReadError::Unmapped(address),
    }
}

impl Memory for ProcessMemory {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let wanted = buffer.len();
        if wanted == 0 {
            return Ok(());
        }
        let remote = [RemoteIoVec {
            base: address as usize,
            len: wanted,
        }];
        match self.read(&mut [IoSliceMut::new(buffer)], &remote) {
            Ok(count) if count == wanted => Ok(()),
            Ok(_) => Err(ReadError::Unmapped(address)),
            Err(errno) => Err(error_of(errno, address)),
        }
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let mut rest = requests;
        while !rest.is_empty() {
            let batch_length = rest.len().min(MAX_BATCH);
            let (batch, _) = rest.split_at_mut(batch_length);
            let done = read_batch(self, batch);
            rest = &mut rest[done..];
        }
    }
}

/// Reads one batch up to and including the first range that fails; returns how many ranges are done
/// (at least one).
fn read_batch(memory: &ProcessMemory, batch: &mut [ReadRequest<'_>]) -> usize {
    let remote: Vec<RemoteIoVec> = batch
        .iter()
        .map(|request| RemoteIoVec {
            base: request.address as usize,
            len: request.buffer.len(),
        })
        .collect();
    let mut local: Vec<IoSliceMut<'_>> = batch
        .iter_mut()
        .map(|request| IoSliceMut::new(request.buffer))
        .collect();
    let read = memory.read(&mut local, &remote);
    drop(local);
    let (mut available, error) = match read {
        Ok(count) => (count, None),
        Err(errno) => (0, Some(errno)),
    };
    for (index, request) in batch.iter_mut().enumerate() {
        if request.buffer.len() <= available {
            available -= request.buffer.len();
            request.result = Ok(());
            continue;
        }
        request.result = Err(error.map_or(ReadError::Unmapped(request.address), |errno| {
            error_of(errno, request.address)
        }));
        return index + 1;
    }
    batch.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn reads_own_memory_and_reports_each_range() {
        let pid = std::process::id() as i32;
        for file in [None, open(pid).ok()] {
            reads_own_memory(&ProcessMemory::with(pid, file));
        }
    }

    #[test]
    fn a_file_of_a_process_that_called_exec_is_opened_again() {
        let mut child = Command::new("sh")
            .args(["-c", "echo ready; read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let memory = ProcessMemory::with(pid, open(pid).ok());
        assert_eq!(magic(&memory, pid), *b"\x7fELF");
        let stdin = child.stdin.as_mut().unwrap();
        writeln!(stdin, "for the shell\nfor cat").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "for cat");
        assert_eq!(magic(&memory, pid), *b"\x7fELF");
        drop(child.stdin.take());
        child.wait().unwrap();
        let mut buffer = [0];
        assert_eq!(memory.read_exact(4096, &mut buffer), Err(ReadError::Gone));
    }

    /// What the program of a process begins with.
    fn magic(memory: &ProcessMemory, pid: i32) -> [u8; 4] {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let start = maps.split('-').next().unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let mut buffer = [0; 4];
        memory.read_exact(start, &mut buffer).unwrap();
        buffer
    }

    fn reads_own_memory(memory: &ProcessMemory) {
        let data = [1_u8, 2, 3, 4, 5, 6, 7, 8];
        let address = data.as_ptr() as u64;
        let (mut first, mut bad, mut last) = ([0; 4], [0; 8], [0; 2]);
        let mut requests = [
            ReadRequest {
                address,
                buffer: &mut first,
                result: Ok(()),
            },
            ReadRequest {
                address: 8,
                buffer: &mut bad,
                result: Ok(()),
            },
            ReadRequest {
                address: address + 6,
                buffer: &mut last,
                result: Ok(()),
            },
        ];
        memory.read_many(&mut requests);
        assert_eq!(requests[0].result, Ok(()));
        assert_eq!(requests[1].result, Err(ReadError::Unmapped(8)));
        assert_eq!(requests[2].result, Ok(()));
        assert_eq!((first, last), ([1, 2, 3, 4], [7, 8]));
        assert!(memory.read_u64(address).is_ok());
    }
}
