//! Live memory of another process, by `process_vm_readv`.

use super::threads::living_task;
use crate::memory::{Memory, ReadError, ReadRequest};
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicI32, Ordering};

/// Longest vector that the kernel takes in one call (UIO_MAXIOV).
const MAX_BATCH: usize = 1024;
/// Longest vector that [`ProcessMemory::read_vector`] takes.
pub const MAX_VECTOR: usize = 128;

/// Memory of a live process. Reading takes the target's mmap lock for reading; nothing is written.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: i32,
    /// The thread through which it is read. A dead thread has no memory, not even the first thread
    /// of a process.
    through: AtomicI32,
}

impl ProcessMemory {
    /// Memory of the process, or of the thread, `pid`.
    pub fn new(pid: i32) -> Self {
        Self {
            pid,
            through: AtomicI32::new(pid),
        }
    }

    /// `process_vm_readv`, through another thread if the current one is dead.
    pub(super) fn read(
        &self,
        local: &mut [IoSliceMut<'_>],
        remote: &[RemoteIoVec],
    ) -> Result<usize, Errno> {
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

    #[test]
    fn reads_own_memory_and_reports_each_range() {
        let memory = ProcessMemory::new(std::process::id() as i32);
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
