//! Opening a target's ELF files, read-only, and only within the target's own root.
use super::threads::living_task;
use crate::memory::Bytes;
use crate::model::mapping::Mapping;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a target's file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ElfFileError {
    /// The target's root cannot be entered: another user's process, or tracing it is not allowed.
    #[error("cannot enter the root of process {pid}: {source}")]
    Root { pid: i32, source: Errno },
    #[error("cannot open {path}: {source}")]
    Open {
        /// The path in the target's root.
        path: String,
        source: Errno,
    },
    /// The path leads to a device, a FIFO, a directory or an empty file.
    #[error("{path} is no regular file with content")]
    NotRegular {
        /// The path in the target's root.
        path: String,
    },
}

/// A file of the target, read with pread(2) and never mapped. If it is truncated or rewritten in
/// place, reads fail from then on: its content may belong to another program.
#[derive(Debug)]
pub struct ElfFile {
    file: File,
    /// Size and time of the last change when it was opened.
    opened: Version,
    has_changed: AtomicBool,
}

/// Size in bytes, and time of the last change of content in seconds and nanoseconds. Changes of
/// links and modes do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version(u64, i64, i64);

impl Version {
    fn of(file: &File) -> Option<Self> {
        let status = file.metadata().ok()?;
        Some(Self(status.size(), status.mtime(), status.mtime_nsec()))
    }
}

impl ElfFile {
    /// Opens `path` as process `pid` sees it. Symbolic links and `..` do not lead out of its root,
    /// and only regular files are opened: opening a device or a FIFO may have effects.
    ///
    /// # Errors
    /// [`ElfFileError`].
    pub fn open(pid: i32, path: &str) -> Result<Self, ElfFileError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let living = living_task(pid);
        let root = open(
            format!("/proc/{living}/root").as_str(),
            flags,
            Mode::empty(),
        )
        .map_err(|source| ElfFileError::Root { pid, source })?;
        let found = open_in_root(&root, path).map_err(|source| ElfFileError::Open {
            path: path.to_owned(),
            source,
        })?;
        Self::reopen(&found, path)
    }

    /// Opens the file that `mapping` of process `pid` maps, even if it was deleted or replaced by
    /// another of the same name. The kernel requires `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`
    /// (proc_pid_map_files(5)).
    ///
    /// # Errors
    /// [`ElfFileError`].
    pub fn open_mapped(pid: i32, mapping: &Mapping) -> Result<Self, ElfFileError> {
        let link = format!(
            "/proc/{}/map_files/{:x}-{:x}",
            living_task(pid),
            mapping.start,
            mapping.end
        );
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let found =
            open(link.as_str(), flags, Mode::empty()).map_err(|source| ElfFileError::Open {
                path: mapping.path.clone(),
                source,
            })?;
        Self::reopen(&found, &mapping.path)
    }

    /// When its content last changed before it was opened, ns since 1970.
    pub fn changed_ns(&self) -> u64 {
        let Version(_, seconds, nanoseconds) = self.opened;
        let whole = u64::try_from(seconds)
            .unwrap_or(0)
            .saturating_mul(1_000_000_000);
        whole.saturating_add(u64::try_from(nanoseconds).unwrap_or(0))
    }

    /// Opens the file of an `O_PATH` descriptor for reading, after a check that it is a regular
    /// file.
    fn reopen(found: &OwnedFd, path: &str) -> Result<Self, ElfFileError> {
        let open_error = |source| ElfFileError::Open {
            path: path.to_owned(),
            source,
        };
        let status = fstat(found).map_err(open_error)?;
        let kind = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT;
        if kind != SFlag::S_IFREG || status.st_size <= 0 {
            return Err(ElfFileError::NotRegular {
                path: path.to_owned(),
            });
        }
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(open(again.as_str(), flags, Mode::empty()).map_err(open_error)?);
        let opened = Version::of(&file).ok_or_else(|| open_error(Errno::EIO))?;
        Ok(Self {
            file,
            opened,
            has_changed: AtomicBool::new(false),
        })
    }
}

impl Bytes for ElfFile {
    fn size(&self) -> u64 {
        self.opened.0
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool {
        // Checked after the read: data from before a change is valid.
        self.file.read_exact_at(buffer, offset).is_ok() && !self.has_changed()
    }

    fn has_changed(&self) -> bool {
        // After a change its time may be set back, so the flag stays.
        if !self.has_changed.load(Ordering::Relaxed) && Version::of(&self.file) != Some(self.opened)
        {
            self.has_changed.store(true, Ordering::Relaxed);
        }
        self.has_changed.load(Ordering::Relaxed)
    }
}

/// An `O_PATH` descriptor of `path` below `root`.
fn open_in_root(root: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(root, path, how) {
        // Linux before 5.6 lacks this system call; seccomp profiles of containers answer EPERM to
        // unknown calls.
        Err(Errno::ENOSYS | Errno::EPERM) => walk_in_root(root, path),
        result => result,
    }
}

/// The same without openat2: one component at a time, without following symbolic links. A path in
/// `/proc/PID/maps` is already free of links, so nothing is lost.
fn walk_in_root(root: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mut at: Option<OwnedFd> = None;
    for component in Path::new(path).components() {
        let Component::Normal(name) = component else {
            if component == Component::RootDir {
                continue;
            }
            return Err(Errno::EXDEV);
        };
        let next = openat(at.as_ref().unwrap_or(root), name, flags, Mode::empty())?;
        let kind = SFlag::from_bits_truncate(fstat(&next)?.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFLNK {
            return Err(Errno::ELOOP);
        }
        at = Some(next);
    }
    at.ok_or(Errno::ENOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn own_executable_opens_by_both_ways() {
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        let exe = exe.to_str().unwrap();
        let file = ElfFile::open(own_pid(), exe).unwrap();
        assert_eq!(file.copy(0..4).unwrap(), b"\x7fELF");
        let root = open("/", OFlag::O_PATH, Mode::empty()).unwrap();
        let walked = ElfFile::reopen(&walk_in_root(&root, exe).unwrap(), exe).unwrap();
        assert_eq!(file.size(), walked.size());
    }

    #[test]
    fn the_walk_refuses_links_and_parents() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let root = open(folder.path(), OFlag::O_PATH, Mode::empty()).unwrap();
        assert_eq!(walk_in_root(&root, "/link").unwrap_err(), Errno::ELOOP);
        assert_eq!(
            walk_in_root(&root, "/../etc/passwd").unwrap_err(),
            Errno::EXDEV
        );
    }

    #[test]
    fn links_resolve_within_the_root() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("inside"), b"x").unwrap();
        std::os::unix::fs::symlink("/inside", folder.path().join("good")).unwrap();
        std::os::unix::fs::symlink("../../../../../../etc/passwd", folder.path().join("bad"))
            .unwrap();
        let root = open(folder.path(), OFlag::O_PATH, Mode::empty()).unwrap();
        let good = ElfFile::reopen(&open_in_root(&root, "/good").unwrap(), "/good").unwrap();
        assert_eq!(good.copy(0..1).unwrap(), b"x");
        assert_eq!(open_in_root(&root, "/bad").unwrap_err(), Errno::ENOENT);
    }

    #[test]
    fn devices_pipes_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for path in ["/dev/null", "/tmp", pipe.to_str().unwrap()] {
            let refused = ElfFile::open(own_pid(), path);
            assert!(
                matches!(refused, Err(ElfFileError::NotRegular { .. })),
                "{path}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_process_that_is_gone_is_an_error_of_its_root() {
        assert!(matches!(
            ElfFile::open(i32::MAX, "/etc/passwd"),
            Err(ElfFileError::Root { .. })
        ));
    }

    #[test]
    fn a_file_that_was_cut_short_or_rewritten_is_not_read_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open_file = || {
            std::fs::write(&path, [7; 8192]).unwrap();
            let file = ElfFile::open(own_pid(), path.to_str().unwrap()).unwrap();
            assert_eq!(file.copy(4096..8192).unwrap(), [7; 4096]);
            file
        };
        for size in [0, 4096] {
            let file = open_file();
            let writer = File::options().write(true).open(&path).unwrap();
            writer.set_len(size).unwrap();
            assert_eq!(file.copy(4096..8192), None);
            assert_eq!(file.copy(0..1), None);
            assert!(file.has_changed());
        }
        let file = open_file();
        let writer = File::options().write(true).open(&path).unwrap();
        // The kernel's clock for these times advances with its tick, of up to 10 ms.
        while Version::of(&file.file) == Some(file.opened) {
            writer.write_all_at(&[8; 16], 4096).unwrap();
        }
        assert_eq!(file.copy(0..1), None);
        // Another name, or none, is not a change.
        let file = open_file();
        std::fs::remove_file(&path).unwrap();
        assert!(file.copy(0..8192).is_some());
    }
}
