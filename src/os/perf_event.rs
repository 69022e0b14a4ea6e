//! Samples of a running thread that the kernel takes on request (perf_event_open(2)): registers and
//! a copy of the stack, without a stop, a signal or an attachment.
//!
//! The event is a task clock that is off. A request switches it on for one overflow
//! (`PERF_EVENT_IOC_REFRESH`), which comes after the shortest period of that clock, 10 us
//! (`perf_swevent_start_hrtimer`, kernel/events/core.c); the interrupt that carries it out copies,
//! and the thread goes on. A thread that is off its CPU is sampled when it runs again.
#![allow(unsafe_code)]

use super::host::{kernel_release, kernel_version};
use crate::arch::{Architecture, Machine};
use crate::model::registers::Registers;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use perf_event_open_sys::{bindings as sys, ioctls, perf_event_open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shortest period of a task clock, ns: the kernel raises shorter ones.
const PERIOD_NS: u64 = 10_000;
/// Largest record: its length has 16 bits.
const MAX_RECORD: usize = 64 << 10;
/// Largest part of a record that is not stack: ids, time, registers and lengths.
const HEAD_BYTES: usize = 512;
/// Largest copy of a stack, bytes. It is a multiple of 8, as the kernel asks for.
pub const MAX_STACK_COPY: usize = MAX_RECORD - HEAD_BYTES;
/// The program runs in its processor's 64-bit mode (`PERF_SAMPLE_REGS_ABI_64`).
const ABI_64: u64 = 2;
/// The kernel's value of a register that it did not save when the thread entered it
/// (`perf_get_regs_user`, arch/x86/kernel/perf_regs.c).
const NOT_SAVED: u64 = u64::MAX;

/// What the kernel lets us sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A thread in its own code and in the kernel.
    All,
    /// Only a thread in its own code: perf_event_paranoid is 2, without CAP_PERFMON. A thread in
    /// the kernel is sampled when it comes back.
    UserCode,
}

/// The widest scope in which the calling thread may be sampled, which is that of other threads that
/// it may trace.
///
/// # Errors
/// The kernel's: EACCES by perf_event_paranoid or a security module, EPERM by seccomp, ENOSYS or
/// ENOENT where the kernel lacks it; [`io::ErrorKind::Unsupported`] for a kernel that would hang.
pub fn scope() -> io::Result<Scope> {
    for scope in [Scope::All, Scope::UserCode] {
        match KernelSampler::open(0, 4096, scope) {
            Ok(_) => return Ok(scope),
            Err(error) if scope == Scope::UserCode => return Err(error),
            Err(_) => {}
        }
    }
    Err(io::Error::from(Errno::EACCES))
}

/// Whether the kernel of this release hangs, the whole machine with it, when an overflow switches a
/// task clock off: it then waits in the timer's handler for the timer (fixed by eb3182ef0405, "Fix
/// system hang caused by cpu-clock usage", in 6.18; later 6.17.x have it, too, from a version on
/// that is not known here). Source: async-profiler's issue 1578 and pull request 1599.
fn hangs(release: &str) -> bool {
    matches!(kernel_version(release), Some((6, 16 | 17)))
}

/// A sample; the stack is in the buffer that was handed over for it.
#[derive(Clone, Copy, Debug)]
pub struct KernelSample {
    /// When it was taken, CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub registers: Registers,
    /// Bytes of the stack that were copied, from the stack pointer on.
    pub stack_bytes: usize,
}

/// Takes samples of one thread.
#[derive(Debug)]
pub struct KernelSampler {
    event: OwnedFd,
    ring: Ring,
    stack_bytes: usize,
    /// A request was not answered: it is still counted when the event is switched on again.
    is_armed: bool,
}

impl KernelSampler {
    /// Of the thread `tid`; 0 is the calling one. Of its stack `stack_bytes` are copied, at most
    /// [`MAX_STACK_COPY`].
    ///
    /// # Errors
    /// The kernel's, as for [`scope`]; EMFILE without descriptors, ENOMEM without memory, also
    /// where the locked memory of rings is used up (perf_event_mlock_kb; the kernel says EPERM),
    /// ESRCH without such a thread.
    pub fn open(tid: i32, stack_bytes: usize, scope: Scope) -> io::Result<Self> {
        static HANGS: LazyLock<bool> = LazyLock::new(|| hangs(&kernel_release()));
        if *HANGS {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "Linux 6.16 and 6.17 hang where an event is switched off by its own overflow",
            ));
        }
        let stack_bytes = stack_bytes.clamp(64, MAX_STACK_COPY).next_multiple_of(8);
        let mut attributes = sys::perf_event_attr::default();
        attributes.size = size_of::<sys::perf_event_attr>() as u32;
        attributes.type_ = sys::PERF_TYPE_SOFTWARE;
        attributes.config = u64::from(sys::PERF_COUNT_SW_TASK_CLOCK);
        attributes.sample_type = u64::from(
            sys::PERF_SAMPLE_TIME | sys::PERF_SAMPLE_REGS_USER | sys::PERF_SAMPLE_STACK_USER,
        );
        attributes.sample_regs_user = register_mask();
        attributes.sample_stack_user = stack_bytes as u32;
        attributes.clockid = libc::CLOCK_MONOTONIC;
        attributes.__bindgen_anon_1.sample_period = PERIOD_NS;
        attributes.__bindgen_anon_2.wakeup_events = 1;
        attributes.set_disabled(1);
        attributes.set_exclude_kernel(u64::from(scope == Scope::UserCode));
        attributes.set_exclude_hv(1);
        attributes.set_use_clockid(1);
        // SAFETY: `attributes` is a whole value of the size that it states, and lives past the
        // call, which returns a descriptor or -1.
        let descriptor = unsafe {
            let cloexec = libc::c_ulong::from(sys::PERF_FLAG_FD_CLOEXEC);
            perf_event_open(&raw mut attributes, tid, -1, -1, cloexec)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it for us; nobody else owns it.
        let event = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let ring = Ring::map(&event, stack_bytes + HEAD_BYTES)?;
        Ok(Self {
            event,
            ring,
            stack_bytes,
            is_armed: false,
        })
    }

    /// Length of the copies, bytes.
    pub fn stack_bytes(&self) -> usize {
        self.stack_bytes
    }

    /// Asks for one sample.
    ///
    /// # Errors
    /// The kernel's; the thread may have ended.
    pub fn request(&mut self) -> io::Result<()> {
        let event = self.event.as_raw_fd();
        // SAFETY: requests to an event that is open; they take no pointers.
        let result = unsafe {
            match std::mem::replace(&mut self.is_armed, true) {
                false => ioctls::REFRESH(event, 1),
                true => ioctls::ENABLE(event, 0),
            }
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Withdraws a request. A sample may have been taken by now.
    pub fn withdraw(&mut self) {
        // SAFETY: as in `request`.
        let _ = unsafe { ioctls::DISABLE(self.event.as_raw_fd(), 0) };
    }

    /// Waits for a sample, asleep.
    pub fn wait(&self, at_most: Duration) {
        let mut events = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        let _ = ppoll(&mut events, Some(TimeSpec::from_duration(at_most)), None);
    }

    /// Takes the newest sample, with its stack at the begin of `stack`, which grows as needed.
    /// `None` without one, or if the program does not run in the processor's 64-bit mode.
    pub fn take(&mut self, stack: &mut Vec<u8>) -> Option<KernelSample> {
        let mut found = None;
        while let Some((record, kind)) = self.ring.next() {
            if kind == sys::PERF_RECORD_SAMPLE {
                self.is_armed = false;
                found = self.ring.sample(record, stack);
            }
            self.ring.release(record);
        }
        found
    }
}

/// Which of the kernel's register numbers are asked for.
fn register_mask() -> u64 {
    let numbers = Machine::PERF_REGISTERS.iter();
    numbers.fold(0, |mask, number| mask | 1 << number)
}

/// A record in the ring: where it begins, and its length.
#[derive(Clone, Copy, Debug)]
struct Record {
    start: u64,
    length: u64,
}

/// The memory that the kernel writes records to: a page about the ring, and the ring, whose size is
/// a power of two.
#[derive(Debug)]
struct Ring {
    start: NonNull<u8>,
    page: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is not bound to the thread that made it.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring that holds a record of `record` bytes.
    fn map(event: &OwnedFd, record: usize) -> io::Result<Self> {
        let page = super::resident::page_bytes() as usize;
        let bytes = record.max(page).next_power_of_two();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page + bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { start, page, bytes })
            }
            _ => Err(match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EPERM) => Errno::ENOMEM.into(),
                error => error,
            }),
        }
    }

    /// The number of bytes that the kernel has written so far.
    fn head(&self) -> &AtomicU64 {
        self.counter(std::mem::offset_of!(sys::perf_event_mmap_page, data_head))
    }

    /// The number of bytes that were read.
    fn tail(&self) -> &AtomicU64 {
        self.counter(std::mem::offset_of!(sys::perf_event_mmap_page, data_tail))
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned u64 of the first page (perf_event_open(2)), which stays mapped as long
        // as `self`; the kernel writes it as a whole.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// The oldest record that was not released, and its type.
    fn next(&self) -> Option<(Record, sys::perf_event_type)> {
        let start = self.tail().load(Ordering::Relaxed);
        // Acquire: the record was written before the head.
        if self.head().load(Ordering::Acquire) == start {
            return None;
        }
        let header = self.word(start);
        let length = (header >> 48).max(8);
        Some((Record { start, length }, header as u32))
    }

    fn release(&self, record: Record) {
        // Release: the kernel overwrites the record only after we have read it.
        let end = record.start + record.length;
        self.tail().store(end, Ordering::Release);
    }

    /// The fields of a sample in the order of perf_event_open(2): time, registers, stack.
    fn sample(&self, record: Record, stack: &mut Vec<u8>) -> Option<KernelSample> {
        let mut at = record.start + 8;
        let mut next = || {
            let word = self.word(at);
            at += 8;
            word
        };
        let time_ns = next();
        if next() != ABI_64 {
            return None;
        }
        let mut registers = Registers::unknown();
        let asked = register_mask();
        let mut values = [0; 64];
        for number in (0..64).filter(|number| asked & (1 << number) != 0) {
            values[number] = next();
        }
        for (dwarf, &number) in Machine::PERF_REGISTERS.iter().enumerate() {
            if values[number] != NOT_SAVED {
                registers.set(dwarf, values[number]);
            }
        }
        let length = next();
        let data = at;
        let end = record.start + record.length;
        let fits = length <= MAX_RECORD as u64 && data + length < end;
        let copied = match fits {
            true if length > 0 => self.word(data + length).min(length) as usize,
            _ => 0,
        };
        if stack.len() < copied {
            stack.resize(copied, 0);
        }
        self.copy(data, &mut stack[..copied]);
        Some(KernelSample {
            time_ns,
            registers,
            stack_bytes: copied,
        })
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.copy(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Copies from the ring, around its end.
    fn copy(&self, at: u64, to: &mut [u8]) {
        let length = to.len().min(self.bytes);
        let offset = (at & (self.bytes as u64 - 1)) as usize;
        let first = length.min(self.bytes - offset);
        // SAFETY: both parts lie in the ring, which stays mapped as long as `self`. The kernel does
        // not write where it has not been told that it was read.
        unsafe {
            let ring = self.start.as_ptr().add(self.page);
            std::ptr::copy_nonoverlapping(ring.add(offset), to.as_mut_ptr(), first);
            let rest = to.as_mut_ptr().add(first);
            std::ptr::copy_nonoverlapping(ring, rest, length - first);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` has mapped; nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.page + self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn kernels_that_would_hang_are_known_by_their_release() {
        for release in ["6.16.0", "6.17.6-300.fc43.x86_64", "6.17-rc1"] {
            assert!(hangs(release), "{release}");
        }
        for release in [
            "6.15.4-200.fc42.x86_64",
            "6.18.1",
            "5.16.1",
            "6.1.0-17-amd64",
            "",
        ] {
            assert!(!hangs(release), "{release}");
        }
    }

    /// Samples of a thread that computes, requested one after the other.
    #[test]
    fn a_running_thread_is_sampled_on_request() {
        let Ok(scope) = scope() else {
            println!("skipped: this kernel does not let us open perf events");
            return;
        };
        let (say, hear) = channel();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let local = 0_u64;
            say.send((nix::unistd::gettid().as_raw(), &raw const local as u64))
                .ok();
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let (tid, local) = hear.recv().unwrap();
        let mut sampler = KernelSampler::open(tid, 4096, scope).unwrap();
        let mut stack = Vec::new();
        assert!(sampler.take(&mut stack).is_none());
        let mut last_ns = 0;
        // As the tracer does: the kernel may switch the event off behind a sample that was taken
        // from the ring before that, and with it the next request.
        let sampled = |sampler: &mut KernelSampler, stack: &mut Vec<u8>| {
            loop {
                sampler.request().unwrap();
                let asked = Instant::now();
                while asked.elapsed() < Duration::from_secs(1) {
                    if let Some(sample) = sampler.take(stack) {
                        return sample;
                    }
                    sampler.wait(Duration::from_millis(100));
                }
                sampler.withdraw();
                if let Some(sample) = sampler.take(stack) {
                    return sample;
                }
            }
        };
        for _ in 0..100 {
            let sample = sampled(&mut sampler, &mut stack);
            assert!(sample.time_ns > last_ns);
            last_ns = sample.time_ns;
            let stack_pointer = sample.registers.stack_pointer().unwrap();
            assert!(stack_pointer.abs_diff(local) < 64 << 10);
            assert!(sample.registers.instruction_pointer().is_some());
            assert!(sample.stack_bytes > 0 && sample.stack_bytes <= 4096);
        }
        // A request that is withdrawn does not make the next one a stream.
        sampler.request().unwrap();
        sampler.withdraw();
        sampler.take(&mut stack);
        sampled(&mut sampler, &mut stack);
        sampler.wait(Duration::from_millis(20));
        assert!(sampler.take(&mut stack).is_none());
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}
