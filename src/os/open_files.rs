//! Files that other processes have open (proc_pid_fd(5)).

use std::fs::read_dir;
use std::path::PathBuf;

/// A regular file that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    pub pid: i32,
    /// Where it can be opened anew, also if it has no name any more.
    pub path: PathBuf,
    /// Its last name.
    pub name: PathBuf,
}

/// What the kernel appends to the name of a file that was removed.
const REMOVED: &str = " (deleted)";

/// Open files whose name ends in `end`, of all processes whose files may be seen: one's own, and
/// for root all.
pub fn with_name_ending(end: &str) -> Vec<OpenFile> {
    let entries = read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.flat_map(|pid| of_process(pid, end)).collect()
}

fn of_process(pid: i32, end: &str) -> Vec<OpenFile> {
    let entries = read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let files = entries.flatten().filter_map(|entry| {
        let link = std::fs::read_link(entry.path()).ok()?;
        let text = link.to_str()?;
        let name = text.strip_suffix(REMOVED).unwrap_or(text);
        // A pipe or a device may wait for its other end when it is opened.
        let is_file = name.ends_with(end) && entry.path().metadata().ok()?.is_file();
        is_file.then(|| OpenFile {
            pid,
            path: entry.path(),
            name: PathBuf::from(name),
        })
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn an_open_file_is_found_also_without_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.open-files-test");
        let mut file = std::fs::File::create_new(&path).unwrap();
        file.write_all(b"abc").unwrap();
        for is_there in [true, false] {
            if !is_there {
                std::fs::remove_file(&path).unwrap();
            }
            let found = with_name_ending(".open-files-test");
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].pid, std::process::id() as i32);
            assert_eq!(found[0].name, path);
            let mut text = String::new();
            let mut anew = std::fs::File::open(&found[0].path).unwrap();
            anew.read_to_string(&mut text).unwrap();
            assert_eq!(text, "abc");
        }
        drop(file);
        assert_eq!(with_name_ending(".open-files-test"), []);
    }
}
