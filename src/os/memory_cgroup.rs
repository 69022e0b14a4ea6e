//! Memory of cgroups: what is in use, the limits, and how often they were hit (kernel,
//! admin-guide/cgroup-v2 and cgroup-v1/memory).

use super::process_info::read_text;
use std::path::{Component, Path, PathBuf};

/// Longest of the files that are read here: the mounts of a host with many containers.
const MAX_BYTES: u64 = 1 << 20;
/// Most ancestors of a cgroup.
const DEEPEST: usize = 64;
/// A limit of version 1 from here on is none: it is the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// A cgroup with the controller of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    folder: PathBuf,
    /// Its path in the hierarchy, as `/proc/PID/cgroup` shows it to torchspy.
    pub path: String,
    version_2: bool,
}

/// Memory of a cgroup and all below it, bytes; `None` where its version does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// All of it except the page cache of files, which the kernel takes back when it needs memory.
    pub used: u64,
    /// Page cache of files, without shared memory.
    pub cache: u64,
    /// Shared memory and tmpfs; a part of `used`.
    pub shared: u64,
    /// Anonymous memory; a part of `used`.
    pub anonymous: u64,
    /// Transparent huge pages of it; a part of `anonymous`.
    pub huge: Option<u64>,
    pub swap: Option<u64>,
    /// `memory.max`: what is above it is refused, and processes are killed.
    pub limit: Option<u64>,
    /// `memory.high`: what is above it is slowed down.
    pub high: Option<u64>,
    /// How often the limit left no memory for an allocation (version 2, `oom`), or was reached
    /// (version 1, `failcnt`, and kills at it).
    pub limit_hits: Option<u64>,
    /// Processes of it that the kernel killed for lack of memory, here or on the whole machine. In
    /// version 1 without those of groups below it.
    pub oom_kills: Option<u64>,
}

impl MemoryGroup {
    /// The cgroup of a process and its ancestors, innermost first, as far as torchspy sees them;
    /// none if it has ended, or if its cgroup is outside of what is mounted here.
    pub fn of(pid: i32) -> Vec<Self> {
        let groups = read_text(&format!("/proc/{pid}/cgroup"), MAX_BYTES);
        let mounts = read_text("/proc/self/mountinfo", MAX_BYTES);
        parse_groups(&groups.unwrap_or_default(), &mounts.unwrap_or_default())
    }

    /// Its limit; the file alone is read.
    pub fn limit(&self) -> Option<u64> {
        let name = if self.version_2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        self.limit_of(name)
    }

    /// What it uses; `None` once it is gone, or where it is the root, which has no figures.
    pub fn read(&self) -> Option<GroupMemory> {
        let usage = self.number(if self.version_2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        })?;
        let stat = self.text("memory.stat")?;
        let known = |version_2, version_1| {
            let name = if self.version_2 { version_2 } else { version_1 };
            field(&stat, name)
        };
        let of = |version_2, version_1| known(version_2, version_1).unwrap_or(0);
        let shared = of("shmem", "total_shmem");
        // `file` and `cache` have shared memory in them.
        let cache = of("file", "total_cache").saturating_sub(shared);
        let (limit_hits, oom_kills, swap) = if self.version_2 {
            let events = self.text("memory.events").unwrap_or_default();
            let swap = self.number("memory.swap.current");
            (field(&events, "oom"), field(&events, "oom_kill"), swap)
        } else {
            let control = self.text("memory.oom_control").unwrap_or_default();
            let oom_kills = field(&control, "oom_kill");
            let hits = self.hits_of_version_1(oom_kills);
            (hits, oom_kills, field(&stat, "total_swap"))
        };
        Some(GroupMemory {
            used: usage.saturating_sub(cache),
            cache,
            shared,
            anonymous: of("anon", "total_rss"),
            huge: known("anon_thp", "total_rss_huge"),
            swap,
            limit: self.limit(),
            high: self.limit_of("memory.high"),
            limit_hits,
            oom_kills,
        })
    }

    /// Linux 6.18 does not count a charge that fails at the limit of memory and swap, which is
    /// often that of memory, and asked first. So a kill in a cgroup that was at its limit counts,
    /// too.
    fn hits_of_version_1(&self, oom_kills: Option<u64>) -> Option<u64> {
        let hits = self.number("memory.failcnt")?;
        let highest = self.number("memory.max_usage_in_bytes")?;
        // Memory is charged some pages at a time.
        let is_at = |limit: u64| highest >= limit - limit / 64;
        let kills = oom_kills.filter(|_| self.limit().is_some_and(is_at));
        Some(hits.saturating_add(kills.unwrap_or(0)))
    }

    fn text(&self, name: &str) -> Option<String> {
        read_text(self.folder.join(name).to_str()?, MAX_BYTES)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.trim().parse().ok()
    }

    /// `max` is no number.
    fn limit_of(&self, name: &str) -> Option<u64> {
        self.number(name).filter(|&limit| limit < NO_LIMIT)
    }
}

/// The value of a line `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok()).flatten()
    })
}

/// The cgroup of `/proc/PID/cgroup` (cgroups(7)) below the mounts of `/proc/self/mountinfo`
/// (proc_pid_mountinfo(5)), and its ancestors.
fn parse_groups(groups: &str, mounts: &str) -> Vec<MemoryGroup> {
    let lines = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let is_v1 = |controllers: &str| controllers.split(',').any(|name| name == "memory");
    // Where version 1 has the controller, version 2 has not.
    let Some((controllers, path)) = lines
        .filter(|(controllers, _)| controllers.is_empty() || is_v1(controllers))
        .max_by_key(|(controllers, _)| controllers.len())
    else {
        return Vec::new();
    };
    let version_2 = controllers.is_empty();
    let Some((root, point)) = mounts.lines().find_map(|line| mount_of(line, version_2)) else {
        return Vec::new();
    };
    // A path that leads out of torchspy's cgroup namespace begins with `/..`.
    let has_parents = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    let Some(below) = Path::new(path)
        .strip_prefix(root)
        .ok()
        .filter(|below| !has_parents(below))
    else {
        return Vec::new();
    };
    below
        .ancestors()
        .take(DEEPEST)
        .map(|below| MemoryGroup {
            folder: joined(point, below),
            path: joined(root, below).to_string_lossy().into_owned(),
            version_2,
        })
        .collect()
}

/// Without a slash at its end, where `below` is empty.
fn joined(folder: &str, below: &Path) -> PathBuf {
    Path::new(folder).join(below).components().collect()
}

/// Root within the hierarchy and mount point, of a line that mounts the one with memory.
fn mount_of(line: &str, version_2: bool) -> Option<(&str, &str)> {
    let (place, file_system) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?, place.next()?);
    let mut file_system = file_system.split(' ');
    let kind = file_system.next()?;
    let mut has_memory = || {
        let options = file_system.nth(1).unwrap_or_default();
        options.split(',').any(|option| option == "memory")
    };
    let is_it = match version_2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && has_memory(),
    };
    is_it.then_some((root, point))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
        31 30 0:27 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n\
        32 30 0:28 /docker/a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        33 30 0:29 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    fn found(groups: &str, mounts: &str) -> Vec<(String, String)> {
        let all = parse_groups(groups, mounts).into_iter();
        all.map(|group| (group.folder.to_string_lossy().into_owned(), group.path))
            .collect()
    }

    #[test]
    fn groups_are_found_below_their_mount() {
        let pair = |folder: &str, path: &str| (folder.to_owned(), path.to_owned());
        assert_eq!(
            found("4:memory:/docker/a/job\n0::/x\n", HYBRID),
            [
                pair("/sys/fs/cgroup/memory/job", "/docker/a/job"),
                pair("/sys/fs/cgroup/memory", "/docker/a"),
            ]
        );
        let unified = "31 30 0:27 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            found("0::/a/b:c\n", unified),
            [
                pair("/sys/fs/cgroup/a/b:c", "/a/b:c"),
                pair("/sys/fs/cgroup/a", "/a"),
                pair("/sys/fs/cgroup", "/"),
            ]
        );
        // Outside of the mount, of the namespace, without a mount, nonsense.
        assert!(found("4:memory:/docker/b\n", HYBRID).is_empty());
        assert!(found("0::/../other\n", unified).is_empty());
        assert!(found("0::/a\n", "").is_empty());
        assert!(found("memory", HYBRID).is_empty());
    }

    /// A folder of version 2, as the kernel writes its files.
    #[test]
    fn a_group_of_version_2_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("memory.current", "1000\n"),
            ("memory.max", "max\n"),
            ("memory.high", "1500\n"),
            ("memory.swap.current", "7\n"),
            (
                "memory.stat",
                "anon 500\nfile 400\nkernel 10\nshmem 100\nfile_mapped 3\nanon_thp 64\n",
            ),
            (
                "memory.events",
                "low 0\nhigh 4\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n",
            ),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let group = MemoryGroup {
            folder: folder.path().to_owned(),
            path: "/x".to_owned(),
            version_2: true,
        };
        let expected = GroupMemory {
            used: 700,
            cache: 300,
            shared: 100,
            anonymous: 500,
            huge: Some(64),
            swap: Some(7),
            limit: None,
            high: Some(1500),
            limit_hits: Some(2),
            oom_kills: Some(1),
        };
        assert_eq!(group.read(), Some(expected));
        std::fs::write(folder.path().join("memory.max"), "2000\n").unwrap();
        assert_eq!(group.limit(), Some(2000));
        std::fs::remove_file(folder.path().join("memory.current")).unwrap();
        assert_eq!(group.read(), None);
    }
}
