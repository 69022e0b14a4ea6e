//! Live memory that is read only where it is present: a read of a missing page may block for good.
//!
//! process_vm_readv of a missing page waits for whoever provides it: a disk, the server of a
//! network file system, the program behind a userfaultfd. Only a fatal signal ends that wait (the
//! fault is TASK_KILLABLE: faultin_page in mm/gup.c does not set FAULT_FLAG_INTERRUPTIBLE here),
//! and a thread that waits cannot resume what it has stopped. So a thread that has stopped another
//! one reads the page table first (`/proc/PID/pagemap`, Documentation/admin-guide/mm/pagemap.rst),
//! which neither waits nor populates pages.

use super::clock::monotonic_ns;
use super::threads::living_task;
use super::vm_read::{MAX_VECTOR, ProcessMemory, error_of};
use crate::arch::{Architecture, Machine};
use crate::memory::{Memory, ReadError, ReadRequest};
use nix::sys::uio::RemoteIoVec;
use nix::unistd::{SysconfVar, sysconf};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

/// Bits of a pagemap entry: the page is present; it is in swap.
pub(super) const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Pages per read of the page table.
const BATCH: usize = 64;
/// Maximum length, in pages, of a hole in a range: pages that were never touched and read as zeros,
/// such as the rest of a large local buffer.
const MAX_HOLE: usize = 64;

/// Minimum time between two opens of the page table, ns.
const OPENED_NS: u64 = 50_000_000;
/// Maximum number of known ranges: they are searched linearly.
const MAX_KNOWN: usize = 256;

/// How long a page that was present counts as present, ns. The frames of many threads that sleep
/// alike lie in the same pages, and all of them are read one after the other.
pub const RECENT_NS: u64 = 1_000_000;
/// Number of pages that are remembered.
const RECENT_PAGES: usize = 4096;
/// Is the address of no page.
const NO_PAGE: u64 = u64::MAX;

/// Bytes of a page of this kernel, a power of two. On some machines they are 16 or 64 KB.
pub(super) fn page_bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let found = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        found.map_or(Machine::PAGE_BYTES, i64::cast_unsigned)
    });
    *BYTES
}

fn is_within(known: &[(u64, u64)], address: u64, end: u64) -> bool {
    known.iter().any(|&(from, to)| from <= address && end <= to)
}

/// The state of a page, from the page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Present,
    /// Neither present nor in swap: not mapped, or never touched.
    Untouched,
    Missing,
}

/// Memory of a live process, for the thread that stops others. Not shared between threads.
#[derive(Debug)]
pub struct ResidentMemory {
    memory: ProcessMemory,
    pid: i32,
    /// `None` if the kernel has no such file (CONFIG_PROC_PAGE_MONITOR).
    table: RefCell<Option<File>>,
    /// When it was opened, CLOCK_MONOTONIC.
    opened_ns: Cell<u64>,
    /// Ranges (start, end) that were present when they were looked up.
    known: RefCell<Vec<(u64, u64)>>,
    recent: RefCell<RecentPages>,
    /// How long a page that was present counts as present, ns.
    recent_ns: Cell<u64>,
}

/// Pages that were present not long ago.
#[derive(Debug)]
struct RecentPages {
    /// Addresses, each at the place that its page number gives, and when they were looked up
    /// (CLOCK_MONOTONIC). Those of no page are `NO_PAGE`.
    pages: Box<[(u64, u64); RECENT_PAGES]>,
}

impl RecentPages {
    fn clear(&mut self) {
        self.pages.fill((NO_PAGE, 0));
    }

    /// Whether all pages of a range were looked up at `since_ns` or later.
    fn hold(&self, address: u64, end: u64, since_ns: u64) -> bool {
        let pages = (address & !(page_bytes() - 1)..end).step_by(page_bytes() as usize);
        address < end
            && pages.into_iter().all(|page| {
                let (known, seen_ns) = self.pages[Self::place(page)];
                known == page && seen_ns >= since_ns
            })
    }

    fn insert(&mut self, page: u64, now_ns: u64) {
        self.pages[Self::place(page)] = (page, now_ns);
    }

    /// Spread by Fibonacci hashing: stacks of threads lie at equal distances.
    fn place(page: u64) -> usize {
        let hash = (page / page_bytes()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize % RECENT_PAGES
    }
}

impl Default for RecentPages {
    fn default() -> Self {
        Self {
            pages: Box::new([(NO_PAGE, 0); RECENT_PAGES]),
        }
    }
}

impl ResidentMemory {
    pub fn new(pid: i32) -> Self {
        Self {
            memory: ProcessMemory::new(pid),
            pid,
            table: RefCell::new(open_table(pid)),
            opened_ns: Cell::new(monotonic_ns()),
            known: RefCell::default(),
            recent: RefCell::default(),
            recent_ns: Cell::new(RECENT_NS),
        }
    }

    /// After an exec: see [`ProcessMemory::open_again`].
    pub fn open_again(&self) {
        self.memory.open_again();
    }

    /// Clears the ranges that were looked up.
    pub fn forget(&self) {
        self.known.borrow_mut().clear();
    }

    /// Clears what is known of pages: another program runs.
    pub fn forget_pages(&self) {
        self.recent.borrow_mut().clear();
    }

    /// Sets how long a page that was present counts as present, ns: [`RECENT_NS`] while a thread is
    /// stopped, or may stop. Without, a read that waits for a page delays nobody but the caller.
    pub fn trust_pages_for(&self, recent_ns: u64) {
        self.recent_ns.set(recent_ns);
    }

    /// Looks `ranges` up in the page table, so that a read soon afterwards need not.
    pub fn look_up(&self, ranges: impl IntoIterator<Item = (u64, usize)>) {
        let mut known = self.known.borrow_mut();
        for (address, length) in ranges {
            if known.len() >= MAX_KNOWN {
                return;
            }
            let end = address.saturating_add(length as u64);
            // Objects of one interpreter lie in few pages.
            if is_within(&known, address, end) {
                continue;
            }
            let start = address & !(page_bytes() - 1);
            let mut present_to = start;
            self.each_page(address, end, |page, state| {
                let is_present = state == Page::Present;
                if is_present {
                    present_to = page.saturating_add(page_bytes());
                }
                is_present
            });
            if present_to > start {
                known.push((start, present_to));
            }
        }
    }

    /// Like [`ProcessMemory::read_vector`], up to the first page that is missing. A few untouched
    /// pages between present ones read as zeros.
    ///
    /// # Errors
    /// [`ReadError`] if nothing could be read.
    pub fn read_vector(
        &self,
        addresses: &[u64],
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<usize, ReadError> {
        let mut remote = Vec::with_capacity(buffers.len() + 4);
        let mut local = Vec::with_capacity(buffers.len() + 4);
        let (mut holes, mut total) = (0, 0);
        'ranges: for (&address, buffer) in addresses.iter().zip(buffers.iter_mut()) {
            let mut rest: &mut [u8] = buffer;
            let mut at = address;
            for (length, is_hole) in self.pieces(address, rest.len()) {
                let (piece, behind) = rest.split_at_mut(length);
                rest = behind;
                if is_hole {
                    piece.fill(0);
                    holes += length;
                } else {
                    remote.push(RemoteIoVec {
                        base: at as usize,
                        len: length,
                    });
                    local.push(IoSliceMut::new(piece));
                }
                total += length;
                at = at.wrapping_add(length as u64);
            }
            if !rest.is_empty() {
                break 'ranges;
            }
        }
        let first = addresses.first().copied().unwrap_or(0);
        if remote.is_empty() {
            return Err(ReadError::Unmapped(first));
        }
        let read = self
            .memory
            .read(&mut local, &remote)
            .map_err(|errno| error_of(errno, first))?;
        // If fewer bytes arrive than were present at the look-up, holes are excluded: only what was
        // read counts.
        Ok(match read + holes == total {
            true => total,
            false => read,
        })
    }

    /// The parts of a range up to its first missing page: lengths, and whether they are holes.
    fn pieces(&self, address: u64, length: usize) -> Vec<(usize, bool)> {
        let end = address.saturating_add(length as u64);
        if is_within(&self.known.borrow(), address, end) {
            return vec![(length, false)];
        }
        let mut recent = self.recent.borrow_mut();
        let now_ns = monotonic_ns();
        if recent.hold(address, end, now_ns.saturating_sub(self.recent_ns.get())) {
            return vec![(length, false)];
        }
        let mut pieces: Vec<(usize, bool)> = Vec::new();
        let mut hole = 0;
        self.each_page(address, end, |page, state| {
            let here = (end.min(page.saturating_add(page_bytes())) - address.max(page)) as usize;
            match state {
                Page::Present => {
                    recent.insert(page, now_ns);
                    if hole > 0 {
                        pieces.push((std::mem::take(&mut hole), true));
                    }
                    match pieces.last_mut() {
                        Some((length, false)) => *length += here,
                        _ => pieces.push((here, false)),
                    }
                    true
                }
                Page::Untouched => {
                    hole += here;
                    // A range that begins with a hole was not read before.
                    !pieces.is_empty() && hole <= MAX_HOLE * page_bytes() as usize
                }
                Page::Missing => false,
            }
        });
        pieces
    }

    /// Calls `visit` with each page of a range until it returns false. Without a page table all
    /// pages count as present.
    fn each_page(&self, address: u64, end: u64, mut visit: impl FnMut(u64, Page) -> bool) {
        let mut page = address & !(page_bytes() - 1);
        let mut entries = [0; BATCH * 8];
        while page < end {
            let count = ((end - page).div_ceil(page_bytes()) as usize).min(BATCH);
            let mut read = self.read_table(page, &mut entries[..count * 8]);
            let begins = page <= address;
            let is_present = read > 0 && state(&entries, 0, read) == Page::Present;
            if begins && !is_present && self.open_table_again() {
                read = self.read_table(page, &mut entries[..count * 8]);
            }
            for index in 0..count {
                if !visit(page, state(&entries, index, read)) {
                    return;
                }
                let Some(next) = page.checked_add(page_bytes()) else {
                    return;
                };
                page = next;
            }
        }
    }

    /// Reads entries of the page table from `page` on; returns their number.
    fn read_table(&self, page: u64, entries: &mut [u8]) -> usize {
        let table = self.table.borrow();
        let Some(file) = table.as_ref() else { return 0 };
        file.read_at(entries, page / page_bytes() * 8).unwrap_or(0) / 8
    }

    /// Opens the page table again, with a minimum interval. The file refers to the memory that the
    /// process had when it was opened: an exec replaces that memory, and between vfork and exec it
    /// is the parent's.
    fn open_table_again(&self) -> bool {
        let now_ns = monotonic_ns();
        if now_ns < self.opened_ns.get() + OPENED_NS {
            return false;
        }
        self.opened_ns.set(now_ns);
        *self.table.borrow_mut() = open_table(self.pid);
        true
    }
}

/// The state of the page of entry `index`, of `read` entries. Without an entry it counts as
/// present.
fn state(entries: &[u8], index: usize, read: usize) -> Page {
    match entries[index * 8..].first_chunk() {
        Some(entry) if index < read => match u64::from_le_bytes(*entry) {
            entry if entry & PRESENT != 0 => Page::Present,
            entry if entry & SWAPPED != 0 => Page::Missing,
            _ => Page::Untouched,
        },
        _ => Page::Present,
    }
}

impl Memory for ResidentMemory {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let wanted = buffer.len();
        match self.read_vector(&[address], &mut [IoSliceMut::new(buffer)])? {
            read if read == wanted => Ok(()),
            _ => Err(ReadError::Unmapped(address)),
        }
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let mut at = 0;
        while at < requests.len() {
            let end = requests.len().min(at + MAX_VECTOR);
            let here = &mut requests[at..end];
            let addresses: Vec<u64> = here.iter().map(|request| request.address).collect();
            let mut buffers: Vec<IoSliceMut<'_>> = here
                .iter_mut()
                .map(|request| IoSliceMut::new(request.buffer))
                .collect();
            let read = self.read_vector(&addresses, &mut buffers);
            let mut available = read.unwrap_or(0);
            for request in here {
                at += 1;
                if request.buffer.len() > available {
                    // The read ended here: the next one begins behind it.
                    request.result = match read {
                        Err(error @ (ReadError::Gone | ReadError::PermissionDenied)) => Err(error),
                        _ => Err(ReadError::Unmapped(request.address)),
                    };
                    break;
                }
                available -= request.buffer.len();
                request.result = Ok(());
            }
        }
    }
}

/// A dead first thread has no memory.
fn open_table(pid: i32) -> Option<File> {
    File::open(format!("/proc/{pid}/task/{}/pagemap", living_task(pid))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc;

    const PAGES: usize = 8;

    /// New memory of torchspy of which no page is present yet.
    #[allow(unsafe_code)]
    fn fresh() -> &'static mut [u8] {
        let length = PAGES * page_bytes() as usize;
        // SAFETY: a new anonymous mapping, which lives for as long as the process.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            // Huge pages of 2 MB would become present at once.
            libc::madvise(start, length, libc::MADV_NOHUGEPAGE);
            std::slice::from_raw_parts_mut(start.cast(), length)
        }
    }

    #[test]
    fn what_is_not_present_is_not_read_and_not_made_present() {
        let memory = ResidentMemory::new(std::process::id() as i32);
        let ours = fresh();
        let page = page_bytes() as usize;
        (ours[0], ours[page], ours[4 * page]) = (1, 2, 3);
        let address = ours.as_ptr() as u64;
        let mut copy = vec![9; PAGES * page];
        let read = memory.read_vector(&[address], &mut [IoSliceMut::new(&mut copy)]);
        // Two pages, a hole of two, one page; the three at the end were never touched.
        assert_eq!(read, Ok(5 * page));
        assert_eq!(
            (copy[0], copy[page], copy[2 * page], copy[4 * page]),
            (1, 2, 0, 3)
        );
        let at = address + 2 * page_bytes();
        assert_eq!(memory.read_u64(at), Err(ReadError::Unmapped(at)));
        let mut state = None;
        memory.each_page(at, at + 1, |_, found| {
            state = Some(found);
            true
        });
        assert_eq!(state, Some(Page::Untouched));
    }

    #[test]
    fn the_end_of_the_address_space_is_no_overflow() {
        let memory = ResidentMemory::new(std::process::id() as i32);
        for address in [u64::MAX, u64::MAX - 7, u64::MAX - page_bytes()] {
            memory.look_up([(address, 4096)]);
            assert!(memory.read_u64(address).is_err(), "{address:#x}");
        }
    }

    #[test]
    fn what_was_looked_up_is_read_without_asking_again() {
        let memory = ResidentMemory::new(std::process::id() as i32);
        let ours = fresh();
        ours[0] = 7;
        let address = ours.as_ptr() as u64;
        memory.look_up([(address, 16), (address + page_bytes(), 16)]);
        assert_eq!(memory.known.borrow()[0], (address, address + page_bytes()));
        assert_eq!(memory.pieces(address + 8, 8), [(8, false)]);
        assert_eq!(memory.pieces(address + page_bytes(), 8), []);
    }
    #[test]
    fn a_page_that_was_present_counts_as_present_for_a_moment() {
        let memory = ResidentMemory::new(std::process::id() as i32);
        let ours = fresh();
        ours[0] = 7;
        let address = ours.as_ptr() as u64;
        assert_eq!(memory.pieces(address, 16), [(16, false)]);
        let recent = memory.recent.borrow();
        let (page, end) = (address, address + page_bytes());
        let seen_ns = recent.pages[RecentPages::place(page)].1;
        assert!(recent.hold(address, end, seen_ns));
        assert!(!recent.hold(address, end + 1, seen_ns));
        assert!(!recent.hold(0, 8, 0));
        assert!(!recent.hold(address, address + 1, seen_ns + 1));
        drop(recent);
        memory.forget_pages();
        assert!(!memory.recent.borrow().hold(address, address + 1, 0));
    }
}
