//! The truth log: what queues and calls really did, one file for each process.
//!
//! Records are written into a mapped file, so that a process that is killed leaves what it had
//! written. `truth.PID` begins with the number of records, in 64 bytes; `names.PID` has a name a
//! line.

use crate::shared;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// As many records fit; their file takes room as it fills.
const MOST: u64 = 1 << 24;
const HEADER: usize = 64;

/// What a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A kernel or copy on a stream.
    Work = 1,
    /// A call of a host thread, from its begin to its return.
    Call = 2,
    /// A part of a call in which it waited for a device.
    Wait = 3,
}

/// A record, as it lies in the file.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Record {
    /// CLOCK_MONOTONIC, ns.
    pub start: u64,
    pub end: u64,
    /// The number of the name.
    pub name: u32,
    /// The thread that called.
    pub tid: u32,
    pub stream: u32,
    pub device: u8,
    pub kind: u8,
    pub pad: u16,
}

/// The log of this process.
pub struct Log {
    map: *mut u8,
    names: Mutex<(HashMap<String, u32>, std::fs::File)>,
}

// SAFETY: records are claimed by an atomic counter and then written by one thread.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    /// # Errors
    /// What the kernel says of the files.
    pub fn create(folder: &Path) -> std::io::Result<Self> {
        let pid = std::process::id();
        let bytes = HEADER as u64 + MOST * size_of::<Record>() as u64;
        let map = shared(&folder.join(format!("truth.{pid}")), bytes)?;
        let names = std::fs::File::create(folder.join(format!("names.{pid}")))?;
        Ok(Self {
            map,
            names: Mutex::new((HashMap::new(), names)),
        })
    }

    /// The number of a name.
    pub fn name(&self, name: &str) -> u32 {
        let mut names = self.names.lock().unwrap_or_else(|error| error.into_inner());
        let (numbers, file) = &mut *names;
        if let Some(&number) = numbers.get(name) {
            return number;
        }
        let number = numbers.len() as u32;
        numbers.insert(name.to_owned(), number);
        // A full disk: the name is missing from the file, as its reader sees.
        drop(file.write_all(format!("{name}\n").as_bytes()));
        number
    }

    pub fn put(&self, record: Record) {
        // SAFETY: the mapping begins with the counter, and is never unmapped.
        let next = unsafe { &*self.map.cast::<AtomicU64>() };
        let number = next.fetch_add(1, AcqRel);
        if number >= MOST {
            return;
        }
        let at = HEADER + number as usize * size_of::<Record>();
        // SAFETY: inside of the mapping, and claimed by nobody else.
        unsafe { self.map.add(at).cast::<Record>().write(record) };
    }
}

/// The log of a process, read back.
pub struct Truth {
    pub pid: u32,
    pub names: Vec<String>,
    pub records: Vec<Record>,
}

impl Truth {
    /// All logs of a node, in the order of pids.
    ///
    /// # Errors
    /// A folder or file that cannot be read; a log that was full.
    pub fn read(folder: &Path) -> std::io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix("truth."));
            if let Some(pid) = pid.and_then(|pid| pid.parse().ok()) {
                all.push(Self::of(folder, pid)?);
            }
        }
        all.sort_by_key(|truth| truth.pid);
        Ok(all)
    }

    /// # Errors
    /// As [`Truth::read`].
    pub fn of(folder: &Path, pid: u32) -> std::io::Result<Self> {
        use std::io::Read;
        let path: PathBuf = folder.join(format!("truth.{pid}"));
        let mut file = std::fs::File::open(path)?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let half = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
        let count = word(&header[..8]);
        if count > MOST {
            return Err(std::io::Error::other("the truth log was full"));
        }
        let mut bytes = vec![0; count as usize * size_of::<Record>()];
        file.read_exact(&mut bytes)?;
        let records = bytes.chunks_exact(size_of::<Record>());
        let records = records
            .map(|bytes| Record {
                start: word(&bytes[..8]),
                end: word(&bytes[8..16]),
                name: half(&bytes[16..20]),
                tid: half(&bytes[20..24]),
                stream: half(&bytes[24..28]),
                device: bytes[28],
                kind: bytes[29],
                pad: 0,
            })
            // One that was claimed and not written yet.
            .filter(|record| record.kind != 0)
            .collect();
        let names = std::fs::read_to_string(folder.join(format!("names.{pid}")))?;
        Ok(Self {
            pid,
            names: names.lines().map(str::to_owned).collect(),
            records,
        })
    }

    pub fn name(&self, record: &Record) -> &str {
        let name = self.names.get(record.name as usize);
        name.map_or("?", String::as_str)
    }

    /// Records of a kind, by name.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Record, &str)> {
        let records = self.records.iter();
        records
            .filter(move |record| record.kind == kind as u8)
            .map(|record| (record, self.name(record)))
    }

    /// Time of a device in which something ran on it, between two moments, ns.
    pub fn busy_ns(&self, device: u8, from: u64, to: u64) -> u64 {
        let mut spans: Vec<(u64, u64)> = self
            .of_kind(Kind::Work)
            .filter(|(record, _)| record.device == device)
            .map(|(record, _)| (record.start.max(from), record.end.min(to)))
            .filter(|(start, end)| end > start)
            .collect();
        spans.sort_unstable();
        let (mut busy, mut until) = (0, from);
        for (start, end) in spans {
            busy += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
        busy
    }
}
