//! A process's use of its host: memory, storage, network, from /proc.

use super::process_info::read_text;
use super::resident::page_bytes;
use super::threads::{ProcFile, living_task};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::time::Duration;

/// Longest of the files that are read here: a line for each network interface.
const MAX_BYTES: u64 = 256 << 10;
/// Seven numbers of at most twenty digits.
const STATM_BYTES: usize = 160;

/// CPU time of all child processes of torchspy that have ended and were waited for.
pub fn children_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map(|usage| {
        let both = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(u64::try_from(both).unwrap_or(0))
    });
    usage.unwrap_or_default()
}

/// Memory of a process, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// All of it that is present.
    pub all: u64,
    /// The part that belongs to no file and is no shared memory: heap, stacks, tensors. A forked
    /// child has what it still shares with its parent in it.
    pub anonymous: u64,
}

/// Resident memory of a process: fields 2 and 3 of `/proc/PID/statm` (proc_pid_statm(5)).
pub fn resident(pid: i32) -> Option<Resident> {
    parse_statm(&read_text(&format!("/proc/{pid}/statm"), MAX_BYTES)?)
}

/// `/proc/PID/statm`, kept open: a read takes about 2 us, and no lock of the address space.
#[derive(Debug)]
pub struct ResidentFile(ProcFile);

impl ResidentFile {
    pub fn open(pid: i32) -> Self {
        Self(ProcFile::new(format!("/proc/{pid}/statm")))
    }

    /// `None` once the process has ended.
    pub fn read(&self) -> Option<Resident> {
        let mut buffer = [0; STATM_BYTES];
        let text = self.0.read(&mut buffer).ok()?;
        parse_statm(std::str::from_utf8(text).ok()?).filter(|resident| resident.all > 0)
    }
}

fn parse_statm(text: &str) -> Option<Resident> {
    let page = page_bytes();
    let mut fields = text.split_ascii_whitespace().skip(1);
    let mut bytes = || fields.next()?.parse::<u64>().ok()?.checked_mul(page);
    let (all, shared) = (bytes()?, bytes()?);
    Some(Resident {
        all,
        anonymous: all.saturating_sub(shared),
    })
}

/// Further memory of a process, bytes; mostly none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FurtherMemory {
    /// Swapped out, without shared memory.
    pub swap: u64,
    /// Resident shared memory: tmpfs (`/dev/shm`), System V, anonymous mappings that are shared.
    pub shared: u64,
    /// Locked by mlock(2) and the like.
    pub locked: u64,
    /// Pinned for devices, as RDMA's registered memory is.
    pub pinned: u64,
    /// Pages of hugetlbfs, which no other figure has in it.
    pub huge: u64,
}

/// Swap, shared, locked and pinned memory of a process, and its pages of hugetlbfs: `VmSwap`,
/// `RssShmem`, `VmLck`, `VmPin` and `HugetlbPages` of `/proc/PID/status` (proc_pid_status(5)),
/// which needs no lock of its address space.
pub fn further_memory(pid: i32) -> Option<FurtherMemory> {
    parse_status(&read_text(&format!("/proc/{pid}/status"), MAX_BYTES)?)
}

fn parse_status(text: &str) -> Option<FurtherMemory> {
    let mut memory = FurtherMemory::default();
    let mut has_any = false;
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let to = match name {
            "VmSwap" => &mut memory.swap,
            "RssShmem" => &mut memory.shared,
            "VmLck" => &mut memory.locked,
            "VmPin" => &mut memory.pinned,
            "HugetlbPages" => &mut memory.huge,
            _ => continue,
        };
        *to = kilobytes(value)?;
        has_any = true;
    }
    // One that has ended and was not waited for has no such lines.
    has_any.then_some(memory)
}

/// Bytes of a value in kB, which are 1,024 bytes each in /proc.
fn kilobytes(value: &str) -> Option<u64> {
    let number: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    number.checked_mul(1024)
}

/// Used bytes and size of the `/dev/shm` that a process sees. `None` where it is no tmpfs of a
/// size, or may not be seen.
pub fn dev_shm(pid: i32) -> Option<(u64, u64)> {
    // The links of /proc lead into the process's mount namespace; a link in it would lead out.
    let folder = format!("/proc/{pid}/root/dev/shm");
    let metadata = std::fs::symlink_metadata(&folder).ok()?;
    let space = nix::sys::statfs::statfs(folder.as_str()).ok()?;
    if !metadata.is_dir() || space.filesystem_type() != nix::sys::statfs::TMPFS_MAGIC {
        return None;
    }
    let block = u64::try_from(space.block_size()).ok()?;
    let size = space.blocks().checked_mul(block)?;
    let free = space.blocks_free().checked_mul(block)?;
    (size > 0).then(|| (size.saturating_sub(free), size))
}

/// Available and total memory of the machine, bytes (proc_meminfo(5)).
pub fn machine_memory() -> Option<(u64, u64)> {
    let text = read_text("/proc/meminfo", MAX_BYTES)?;
    let field = |name: &str| kilobytes(text.lines().find_map(|line| line.strip_prefix(name))?);
    Some((field("MemAvailable:")?, field("MemTotal:")?))
}

/// Processes that the kernel has killed for lack of memory since it started, on the whole machine
/// (`oom_kill` of `/proc/vmstat`, from Linux 4.13 on).
pub fn machine_oom_kills() -> Option<u64> {
    let text = read_text("/proc/vmstat", MAX_BYTES)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

/// Bytes that a process has read from storage and written to it since it started: `read_bytes` and
/// `write_bytes` of `/proc/PID/io` (proc_pid_io(5)). Data served by the page cache is in neither.
/// `None` if the kernel refuses.
pub fn storage_bytes(pid: i32) -> Option<(u64, u64)> {
    parse_io(&read_text(&format!("/proc/{pid}/io"), MAX_BYTES)?)
}

fn parse_io(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("read_bytes:")?, field("write_bytes:")?))
}

/// Bytes received and sent over all interfaces except the loopback, in the network namespace of a
/// process (`/proc/PID/net/dev`, proc_pid_net(5)).
pub fn network_bytes(pid: i32) -> Option<(u64, u64)> {
    parse_net_dev(&read_text(
        &format!("/proc/{}/net/dev", living_task(pid)),
        MAX_BYTES,
    )?)
}

fn parse_net_dev(text: &str) -> Option<(u64, u64)> {
    let mut total = None;
    for line in text.lines().skip(2) {
        let Some((name, figures)) = line.split_once(':') else {
            continue;
        };
        if name.trim() == "lo" {
            continue;
        }
        let mut fields = figures.split_ascii_whitespace();
        // The first field is bytes received, the ninth bytes sent.
        let received: u64 = fields.next()?.parse().ok()?;
        let sent: u64 = fields.nth(7)?.parse().ok()?;
        let (all_received, all_sent) = total.unwrap_or((0_u64, 0_u64));
        total = Some((
            all_received.saturating_add(received),
            all_sent.saturating_add(sent),
        ));
    }
    total
}

/// The name of a process (`comm`); empty if it cannot be read.
pub fn process_name(pid: i32) -> String {
    let text = read_text(&format!("/proc/{pid}/comm"), MAX_BYTES).unwrap_or_default();
    text.trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_their_files() {
        let io =
            "rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 12\ncancelled_write_bytes: 1\n";
        assert_eq!(parse_io(io), Some((4096, 12)));
        assert_eq!(parse_io("read_bytes: 4096\n"), None);
        assert_eq!(parse_io("read_bytes: -1\nwrite_bytes: 2\n"), None);
        let net = "Inter-|   Receive\n face |bytes\n    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\n\
                   ib0:7 1 0 0 0 0 0 0 3 1 0 0 0 0 0 0\n";
        assert_eq!(parse_net_dev(net), Some((107, 33)));
        assert_eq!(parse_net_dev("a\nb\n"), None);
        assert_eq!(parse_net_dev("a\nb\neth0: 1 2 3\n"), None);
    }

    #[test]
    fn further_memory_is_found_in_status() {
        let text = "Name:\ta\nVmLck:\t       4 kB\nVmPin:\t       0 kB\nRssShmem:\t      16 kB\nVmSwap:\t       8 kB\nHugetlbPages:\t    2048 kB\n";
        let expected = FurtherMemory {
            swap: 8192,
            shared: 16384,
            locked: 4096,
            pinned: 0,
            huge: 2 << 20,
        };
        assert_eq!(parse_status(text), Some(expected));
        assert_eq!(parse_status("Name:\ta\nState:\tZ (zombie)\n"), None);
        let (available, total) = machine_memory().expect("it has memory");
        assert!(available > 0 && available < total);
    }

    #[test]
    fn this_process_has_memory() {
        let pid = std::process::id() as i32;
        let all = resident(pid).expect("it is there");
        assert!(all.anonymous > 1 << 16 && all.all > all.anonymous);
        assert!(!process_name(pid).is_empty());
        assert_eq!(resident(i32::MAX), None);
        let kept = ResidentFile::open(pid).read().expect("it is there");
        assert!(kept.anonymous > 1 << 16);
        assert_eq!(ResidentFile::open(i32::MAX).read(), None);
    }
}
