//! Memory that is read by the page, and once: the objects of a model lie close to each other, and
//! are read in many small parts.

use crate::memory::{Memory, ReadError, ReadRequest, read_those};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// A page of the smallest size that a machine has.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of pages that are kept: 16 MB.
const MAX_PAGES: usize = 4096;

/// Pages of a process, as they were when they were first read.
pub(super) struct Pages<'a> {
    behind: &'a dyn Memory,
    pages: RefCell<FxHashMap<u64, Vec<u8>>>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(behind: &'a dyn Memory) -> Self {
        Self {
            behind,
            pages: RefCell::default(),
        }
    }

    /// The memory as it is now.
    pub(super) fn live(&self) -> &'a dyn Memory {
        self.behind
    }

    /// Everything is read anew.
    pub(super) fn forget(&self) {
        self.pages.borrow_mut().clear();
    }

    /// Reads those of `starts` that are missing with few system calls.
    fn fetch(&self, mut starts: Vec<u64>) {
        let mut pages = self.pages.borrow_mut();
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|start| !pages.contains_key(start));
        starts.truncate(MAX_PAGES.saturating_sub(pages.len()));
        let read = read_those::<{ PAGE_BYTES as usize }>(&starts, self.behind);
        let found = starts.into_iter().zip(read);
        pages.extend(found.filter_map(|(start, page)| Some((start, page.ok()?.to_vec()))));
    }
}

impl Memory for Pages<'_> {
    fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
        let start = address / PAGE_BYTES * PAGE_BYTES;
        let offset = (address - start) as usize;
        let end = offset.saturating_add(buffer.len());
        // Across pages in one call: the parts would be of different times.
        if end > PAGE_BYTES as usize {
            return self.behind.read_exact(address, buffer);
        }
        let mut pages = self.pages.borrow_mut();
        if !pages.contains_key(&start) {
            if pages.len() >= MAX_PAGES {
                pages.clear();
            }
            let page = self.behind.read_bytes(start, PAGE_BYTES as usize)?;
            pages.insert(start, page);
        }
        let page = pages.get(&start).and_then(|page| page.get(offset..end));
        buffer.copy_from_slice(page.ok_or(ReadError::Unmapped(address))?);
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let start_of = |request: &ReadRequest<'_>| request.address / PAGE_BYTES * PAGE_BYTES;
        self.fetch(requests.iter().map(start_of).collect());
        for request in requests {
            request.result = self.read_exact(request.address, request.buffer);
        }
    }
}
