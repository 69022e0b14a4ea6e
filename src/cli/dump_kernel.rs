//! What the kernel alone reports of threads, in a dump.

use crate::model::dump::{Dump, DumpedProcess, DumpedThread};
use crate::model::profile::Role;
use crate::model::sample::{Capture, Gil, ThreadState};
use crate::os::kernel_view::{KernelThread, read_kernel_thread, read_kernel_threads};
use crate::os::threads::ThreadFiles;
use crate::torch::rules::syscalls::call_of;

/// A process of which only the kernel's view is known.
pub(super) fn process_of(pid: i32, note: &str) -> DumpedProcess {
    let threads: Vec<DumpedThread> = read_kernel_threads(pid)
        .into_iter()
        .map(thread_of)
        .collect();
    let name = threads.iter().find(|thread| thread.tid == pid);
    DumpedProcess {
        pid,
        role: Role::Other,
        trainer_pid: None,
        job: None,
        groups: String::new(),
        command: name.map(|thread| thread.name.clone()).into_iter().collect(),
        python: String::new(),
        torch: String::new(),
        note: note.to_owned(),
        progress: Vec::new(),
        gil_holder: None,
        threads,
        tasks: Vec::new(),
    }
}

fn thread_of(kernel: KernelThread) -> DumpedThread {
    DumpedThread {
        tid: kernel.tid,
        name: kernel.name,
        python_name: None,
        trains: false,
        state: kernel.state,
        capture: Capture::NotCaptured,
        syscall: kernel.syscall.map(syscall_name),
        gil: Gil::Unknown,
        wait: None,
        module: None,
        at: None,
        frames: Vec::new(),
        partial: None,
        moved_frames: 0,
        slices: None,
        wchan: kernel.wchan,
        kernel_stack: kernel.stack,
    }
}

fn syscall_name(number: u32) -> String {
    call_of(std::env::consts::ARCH, number).map_or_else(
        || format!("system call {number}"),
        |(name, _)| name.to_owned(),
    )
}

/// Adds how often each thread ran; and the kernel stacks of threads in state D and of those that
/// were not captured.
pub(super) fn annotate(dump: &mut Dump) {
    for process in &mut dump.processes {
        let pid = process.pid;
        for thread in &mut process.threads {
            let stat = ThreadFiles::open(pid, thread.tid).schedstat();
            thread.slices = stat
                .ok()
                .filter(|stat| stat.is_kept())
                .map(|stat| stat.slices);
            if !thread.kernel_stack.is_empty() {
                continue;
            }
            let not_captured = thread.frames.is_empty();
            if not_captured || thread.state == ThreadState::Uninterruptible {
                let kernel = read_kernel_thread(pid, thread.tid);
                // It has moved on since its stack was read.
                if !not_captured && kernel.state != thread.state {
                    continue;
                }
                if not_captured && kernel.state != ThreadState::Unknown {
                    thread.state = kernel.state;
                    thread.syscall = kernel.syscall.map(syscall_name);
                }
                thread.wchan = kernel.wchan;
                thread.kernel_stack = kernel.stack;
            }
        }
    }
}
