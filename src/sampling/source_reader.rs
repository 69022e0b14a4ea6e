//! Reads source files off the sampling path: a file system that hangs is what a user may be looking
//! for, and holds up nothing but this.

use crate::memory::Bytes;
use crate::os::elf_file::ElfFile;
use crate::python::source_regions::{MAX_SOURCE, SourceRegion, source_regions};
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for a file. A local one takes a millisecond.
const PATIENCE: Duration = Duration::from_millis(100);

/// A source file, as a process sees it.
struct Request {
    pid: i32,
    file: String,
    /// When the process began, ns since 1970.
    began_ns: u64,
}

/// The named blocks of source files, by file. The thread starts with the first request.
#[derive(Default)]
pub(super) struct SourceReader {
    known: FxHashMap<String, Arc<[SourceRegion]>>,
    thread: Option<Channels>,
    /// Answers are outstanding; nothing more is asked until they come.
    is_late: bool,
}

struct Channels {
    requests: Sender<Request>,
    /// A file, and its blocks; `None` if its process had gone.
    answers: Receiver<(String, Option<Arc<[SourceRegion]>>)>,
}

impl SourceReader {
    /// The blocks of a file; none if it changed since the process began, for its lines are then not
    /// those that run. `None` if that is not known, or not yet.
    pub(super) fn regions(
        &mut self,
        pid: i32,
        file: &str,
        began_ns: u64,
    ) -> Option<Arc<[SourceRegion]>> {
        if let Some(known) = self.known.get(file) {
            return Some(known.clone());
        }
        let channels = self.thread.get_or_insert_with(start);
        if !self.is_late {
            let request = Request {
                pid,
                file: file.to_owned(),
                began_ns,
            };
            channels.requests.send(request).ok()?;
        }
        let patience = if self.is_late {
            Duration::ZERO
        } else {
            PATIENCE
        };
        let Ok((answered, found)) = channels.answers.recv_timeout(patience) else {
            self.is_late = true;
            return None;
        };
        self.is_late = false;
        self.known.insert(answered, found?);
        self.known.get(file).cloned()
    }
}

fn start() -> Channels {
    let (requests, incoming) = unbounded::<Request>();
    let (outgoing, answers) = unbounded();
    // Without the thread no block is found.
    let _ = std::thread::Builder::new()
        .name("torchspy-source".to_owned())
        .spawn(move || {
            for request in incoming {
                let found = regions(&request);
                if outgoing.send((request.file, found)).is_err() {
                    return;
                }
            }
        });
    Channels { requests, answers }
}

fn regions(request: &Request) -> Option<Arc<[SourceRegion]>> {
    let source = source(request);
    if source.is_none() && !Path::new(&format!("/proc/{}", request.pid)).exists() {
        return None;
    }
    Some(
        source
            .map_or_else(Vec::new, |source| source_regions(&source))
            .into(),
    )
}

fn source(request: &Request) -> Option<String> {
    let path = match request.file.starts_with('/') {
        true => request.file.clone(),
        false => {
            let folder = std::fs::read_link(format!("/proc/{}/cwd", request.pid)).ok()?;
            folder.join(&request.file).to_str()?.to_owned()
        }
    };
    let file = ElfFile::open(request.pid, &path).ok()?;
    if file.size() > MAX_SOURCE || file.changed_ns() > request.began_ns {
        return None;
    }
    let text = file.copy(0..file.size())?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::fs;

    #[test]
    fn what_is_no_source_of_the_process_has_no_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.py");
        fs::write(
            &path,
            "import torchspy\nwith torchspy.region(\"x\"):\n    pass\n",
        )
        .unwrap();
        let pipe = folder.path().join("pipe.py");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let own = std::process::id() as i32;
        let found = |pid, path: &Path, began_ns| {
            let file = path.to_str().unwrap().to_owned();
            let request = Request {
                pid,
                file,
                began_ns,
            };
            Some(regions(&request)?.len())
        };
        assert_eq!(found(own, &path, u64::MAX), Some(1));
        // It was written after the process began.
        assert_eq!(found(own, &path, 1), Some(0));
        assert_eq!(found(own, Path::new("/missing.py"), u64::MAX), Some(0));
        assert_eq!(found(own, Path::new("/dev/zero"), u64::MAX), Some(0));
        assert_eq!(found(own, &pipe, u64::MAX), Some(0));
        // Another process may have the file.
        assert_eq!(found(i32::MAX, &path, u64::MAX), None);
    }

    /// As on a file system that hangs: nothing waits for an answer twice.
    #[test]
    fn an_answer_that_does_not_come_is_waited_for_once() {
        let (requests, incoming) = unbounded();
        let (outgoing, answers) = unbounded();
        let mut reader = SourceReader {
            thread: Some(Channels { requests, answers }),
            ..SourceReader::default()
        };
        assert!(reader.regions(1, "/a.py", 0).is_none());
        assert!(reader.is_late);
        assert!(reader.regions(1, "/b.py", 0).is_none());
        assert_eq!(incoming.len(), 1);
        outgoing
            .send(("/a.py".to_owned(), Some(Vec::new().into())))
            .unwrap();
        assert!(reader.regions(1, "/b.py", 0).is_none());
        assert!(!reader.is_late);
        assert!(reader.regions(1, "/a.py", 0).is_some());
        assert_eq!(incoming.len(), 1);
    }
}
