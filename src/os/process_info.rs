//! Facts about a process from /proc and from its memory: names, start time, command line,
//! environment.

use super::own_thread::ask;
use super::redaction::Redaction;
use super::threads::living_task;
use crate::arch::{Architecture, Machine};
use crate::memory::{Memory, ReadError};
use crate::model::process::ProcessInfo;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Variables that set a process's rank in a job, and settings that affect its speed. No others are
/// kept.
///
/// torchrun sets the first group (torch.distributed.run, "Environment Variables"), Slurm, Open MPI,
/// PMI, PALS, Flux, Kubernetes and batch systems theirs; `crate::torch::job` knows what they mean.
const KEPT_VARIABLES: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_CPUS_PER_TASK",
    "SLURMD_NODENAME",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "PMIX_SIZE",
    "PMIX_LOCAL_RANK",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_RANKID",
    "PALS_LOCAL_RANKID",
    "PALS_NODEID",
    "PALS_APID",
    "FLUX_TASK_RANK",
    "FLUX_TASK_LOCAL_ID",
    "FLUX_JOB_SIZE",
    "FLUX_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "PET_NODE_RANK",
    "PET_RDZV_ID",
    "RAY_JOB_ID",
    "TORCHSPY_MESH",
    "JOB_COMPLETION_INDEX",
    "TORCHSPY_JOB",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_RAS_ENABLE",
    "NCCL_RAS_ADDR",
    "NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_HIGH_PRIORITY",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "TORCH_LOGS",
    "TORCH_CUDNN_V8_API_ENABLED",
    "TORCH_SHOW_CPP_STACKTRACES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_JIT",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "PYTHONMALLOC",
    "PYTHON_GIL",
    "PYTHONUNBUFFERED",
    "LD_PRELOAD",
];

/// The note of a process whose command line cannot be read because its memory does not answer.
const COMMAND_UNKNOWN: &str = "command line unknown: its memory does not answer";

const MAX_VALUE_BYTES: usize = 256;
const MAX_COMMAND_BYTES: u64 = 64 << 10;
const MAX_ARGUMENT_BYTES: usize = 4 << 10;
const MAX_ENVIRONMENT_BYTES: u64 = 1 << 20;
const MAX_VARIABLES: u64 = 4096;
/// The smallest page size of all architectures: a read within one page is mapped entirely or not at
/// all.
const PAGE: u64 = Machine::PAGE_BYTES;

/// The flag of the kernel's own threads (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// The fields of `/proc/PID/stat` that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State letter: `R`, `S`, `D`, `T`, `t`, `Z`, …
    pub state: u8,
    pub parent_pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    pub is_kernel_thread: bool,
}

impl Stat {
    /// Whether the thread has ended, waited for or not; of a process, the first thread: others may
    /// live on.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Parses `/proc/PID/stat` (proc_pid_stat(5)). The name in parentheses may hold anything,
/// parentheses included.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(text.get(after_name..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent_pid = fields.next()?.parse().ok()?;
    // Fields 9 and 22; the state is field 3.
    let flags: u64 = fields.nth(9 - 5)?.parse().ok()?;
    let start_ticks = fields.nth(22 - 10)?.parse().ok()?;
    Some(Stat {
        state,
        parent_pid,
        start_ticks,
        is_kernel_thread: flags & PF_KTHREAD != 0,
    })
}

/// Reads and parses `/proc/PID/stat`.
///
/// # Errors
/// `NotFound` where there is no such process.
pub fn read_stat(pid: i32) -> io::Result<Stat> {
    let text = read_bounded(format!("/proc/{pid}/stat"), 4096)?;
    parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "stat"))
}

/// Facts about a process. What may not be read (another user's process) is empty; so are command
/// line and environment if its memory does not answer, and `note` is set then.
///
/// # Errors
/// `NotFound` if there is no such process; or no thread can be started.
pub fn read_process_info(pid: i32, redaction: Redaction) -> io::Result<ProcessInfo> {
    let stat = read_stat(pid)?;
    let living = living_task(pid);
    let exe = std::fs::read_link(format!("/proc/{living}/exe")).unwrap_or_default();
    // Both files are read from its memory (fs/proc/base.c, get_mm_cmdline, environ_read).
    let texts = ask(living, move || {
        let command = read_bounded(format!("/proc/{living}/cmdline"), MAX_COMMAND_BYTES);
        let environment = read_bounded(format!("/proc/{living}/environ"), MAX_ENVIRONMENT_BYTES);
        [command, environment].map(Result::unwrap_or_default)
    })?;
    let texts = texts.answer();
    let note = texts.is_none().then(|| COMMAND_UNKNOWN.to_owned());
    let [command, environment] = texts.unwrap_or_default();
    Ok(ProcessInfo {
        pid,
        start_ticks: stat.start_ticks,
        parent_pid: stat.parent_pid,
        exe: exe.to_string_lossy().into_owned(),
        command: parse_command(&command, redaction),
        environment: parse_environment(&environment),
        note: note.unwrap_or_default(),
        ..ProcessInfo::default()
    })
}

/// The arguments of `/proc/PID/cmdline`; long ones are cut.
pub fn parse_command(bytes: &[u8], redaction: Redaction) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let arguments: Vec<String> = bytes
        .split(|&byte| byte == 0)
        // setproctitle fills what is left of the old command line with spaces.
        .map(|argument| lossy_prefix(argument.trim_ascii_end(), MAX_ARGUMENT_BYTES))
        .collect();
    redaction.command(&arguments)
}

/// The allow-listed variables of an environment block (`NAME=value`, each ended by a NUL). The
/// first of a name counts, as for getenv(3).
pub fn parse_environment(bytes: &[u8]) -> Vec<(String, String)> {
    let mut kept = Vec::new();
    for entry in bytes.split(|&byte| byte == 0) {
        keep_variable(entry, &mut kept);
    }
    kept
}

/// The allow-listed variables of a live process, read from its `environ` array, which has what the
/// program set after exec; /proc has not. `environ_variable` is the address of libc's variable
/// `environ`, not of the array.
///
/// # Errors
/// [`ReadError`] if the array itself cannot be read; unreadable strings in it are skipped.
pub fn live_environment(
    environ_variable: u64,
    memory: &dyn Memory,
) -> Result<Vec<(String, String)>, ReadError> {
    let mut kept = Vec::new();
    let array = memory.read_u64(environ_variable)?;
    if array == 0 {
        return Ok(kept);
    }
    for index in 0..MAX_VARIABLES {
        let slot = array.checked_add(index * 8);
        let entry = match slot.map(|slot| memory.read_u64(slot)) {
            Some(Ok(0)) => break,
            Some(Ok(entry)) => entry,
            Some(Err(error)) if index == 0 => return Err(error),
            // The array was replaced while it was read: what was read so far is valid.
            Some(Err(_)) | None => break,
        };
        keep_variable(&read_c_string(entry, memory), &mut kept);
    }
    Ok(kept)
}

/// Reads to a NUL, an unreadable page, or the maximum length of a kept variable.
fn read_c_string(address: u64, memory: &dyn Memory) -> Vec<u8> {
    const LONGEST: usize = MAX_VALUE_BYTES + 64;
    const CHUNK: u64 = 128;
    let mut bytes = Vec::new();
    let mut next = address;
    while bytes.len() < LONGEST {
        let to_page_end = PAGE - next % PAGE;
        let length = usize::try_from(to_page_end.min(CHUNK)).unwrap_or(1);
        let Ok(chunk) = memory.read_bytes(next, length) else {
            break;
        };
        if let Some(end) = chunk.iter().position(|&byte| byte == 0) {
            bytes.extend_from_slice(&chunk[..end]);
            break;
        }
        bytes.extend_from_slice(&chunk);
        let Some(following) = next.checked_add(length as u64) else {
            break;
        };
        next = following;
    }
    bytes
}

fn keep_variable(entry: &[u8], kept: &mut Vec<(String, String)>) {
    let Some(equals) = entry.iter().position(|&byte| byte == b'=') else {
        return;
    };
    let (name, value) = (&entry[..equals], &entry[equals + 1..]);
    let Some(&name) = KEPT_VARIABLES.iter().find(|kept| kept.as_bytes() == name) else {
        return;
    };
    if kept.iter().all(|(known, _)| known != name) {
        // Redacted whatever the user chose: none of these variables is useful with a secret in it.
        // Cut afterwards, since the rest of a cut secret has no recognizable shape.
        let value = Redaction::On.text(&lossy_prefix(value, MAX_ARGUMENT_BYTES));
        kept.push((
            name.to_owned(),
            lossy_prefix(value.as_bytes(), MAX_VALUE_BYTES),
        ));
    }
}

fn lossy_prefix(bytes: &[u8], longest: usize) -> String {
    let cut = bytes.len() > longest;
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(longest)]).into_owned();
    if cut {
        text.push('…');
    }
    text
}

/// Reads a file of /proc up to `longest` bytes.
pub(crate) fn read_bounded(path: impl AsRef<Path>, longest: u64) -> io::Result<Vec<u8>> {
    // Most are shorter. Into an empty vector a few bytes would be read first.
    let mut bytes = Vec::with_capacity(longest.min(PAGE) as usize);
    match File::open(path)?.take(longest).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        // A process that ended between open and read.
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {
            Err(io::ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}

/// The text of a file of /proc or /sys, up to `longest` bytes; `None` where it cannot be read.
pub(super) fn read_text(path: &str, longest: u64) -> Option<String> {
    let bytes = read_bounded(path, longest).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A field of the file `status` in `directory` (`/proc/PID`, `/proc/PID/task/TID`): `TracerPid:`.
pub(super) fn status_field(directory: &str, name: &str) -> Option<String> {
    let text = read_text(&format!("{directory}/status"), 16 << 10)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SnapshotMemory;
    use proptest::prelude::*;

    #[test]
    fn stat_with_a_hostile_name() {
        let line = b"42 (a) S 1 (b)) R 7 1 1 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 98765 1000 20\n";
        let stat = parse_stat(line).unwrap();
        assert_eq!(
            (stat.state, stat.parent_pid, stat.start_ticks),
            (b'R', 7, 98765)
        );
        assert!(!stat.is_kernel_thread);
        let kernels = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 4 0 0\n";
        assert!(parse_stat(kernels).unwrap().is_kernel_thread);
    }

    #[test]
    fn own_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let info = read_process_info(pid, Redaction::On).unwrap();
        assert_eq!(info.pid, pid);
        assert_eq!(
            info.parent_pid,
            i32::try_from(std::os::unix::process::parent_id()).unwrap()
        );
        assert!(
            info.start_ticks > 0 && info.exe.contains("torchspy"),
            "{info:?}"
        );
        assert!(!info.command.is_empty());
        assert_eq!(
            read_process_info(i32::MAX, Redaction::On)
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn only_listed_variables_are_kept() {
        let block = b"HOME=/root\0RANK=3\0HF_TOKEN=hf_secret\0RANK=4\0WORLD_SIZE=\0\0junk";
        let kept = parse_environment(block);
        assert_eq!(
            kept,
            [
                ("RANK".into(), "3".into()),
                ("WORLD_SIZE".into(), String::new())
            ]
        );
    }

    #[test]
    fn long_values_are_cut() {
        let kept = parse_environment(format!("LD_PRELOAD={}", "x".repeat(100_000)).as_bytes());
        assert_eq!(kept[0].1.len(), MAX_VALUE_BYTES + '…'.len_utf8());
    }

    fn environ_in_memory() -> SnapshotMemory {
        let mut memory = SnapshotMemory::default();
        memory.insert(0x1000, 0x2000_u64.to_le_bytes().to_vec());
        let pointers = [0x3ff8_u64, 0xdead_0000, 0x5000, 0];
        memory.insert(
            0x2000,
            pointers.iter().flat_map(|p| p.to_le_bytes()).collect(),
        );
        // A string across a page's end, and one that a page's end cuts.
        let mut across = vec![0; 0x1000];
        across[0xff8..].copy_from_slice(b"LOCAL_RA");
        memory.insert(0x3000, across);
        let mut rest = vec![0; 0x1000];
        rest[..5].copy_from_slice(b"NK=2\0");
        memory.insert(0x4000, rest);
        let mut rank = vec![0; 0x1000];
        rank[..6].copy_from_slice(b"RANK=9");
        memory.insert(0x5000, rank);
        memory
    }

    #[test]
    fn live_environment_passes_over_what_cannot_be_read() {
        let kept = live_environment(0x1000, &environ_in_memory()).unwrap();
        assert_eq!(
            kept,
            [
                ("LOCAL_RANK".into(), "2".into()),
                ("RANK".into(), "9".into())
            ]
        );
        assert!(live_environment(0x9000, &environ_in_memory()).is_err());
    }

    #[test]
    fn an_endless_environ_ends() {
        struct Endless;
        impl Memory for Endless {
            fn read_exact(&self, _: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
                buffer.fill(b'A');
                Ok(())
            }
        }
        assert!(live_environment(0x1000, &Endless).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(stat) = parse_stat(&bytes) {
                prop_assert!(bytes.contains(&stat.state));
            }
            let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
            let command = parse_command(&bytes, Redaction::Off);
            prop_assert!(command.len() <= zeros + 1);
            prop_assert!(command.iter().all(|argument| argument.len() <= 3 * bytes.len()));
            prop_assert!(parse_command(&bytes, Redaction::On).len() <= zeros + 1);
            prop_assert!(parse_environment(&bytes).len() <= zeros + 1);
        }
    }
}
