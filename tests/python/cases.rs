//! Some 155 stack situations on every interpreter that is installed: Python frames as Python itself
//! sees them, and each merged into its place in the native stack.

use crate::faults::wait_until;
use crate::on_each_python;
use crate::python_target::Python;
use crate::stack_case::{Exceptions, check, dump};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// None is known.
const EXCEPTIONS: &Exceptions = &[];

fn every_case_is_exact(version: &str) {
    check(version, ("stack_cases.py", &[]), 150, EXCEPTIONS);
    check(version, ("stack_cases.py", &["second"]), 2, EXCEPTIONS);
}

on_each_python!(every_case_is_exact:
    every_case_is_exact_on_3_10 "3.10",
    every_case_is_exact_on_3_11 "3.11",
    every_case_is_exact_on_3_12 "3.12",
    every_case_is_exact_on_3_13 "3.13",
    every_case_is_exact_on_3_14 "3.14",
    every_case_is_exact_on_3_15 "3.15",
    every_case_is_exact_on_3_13t "3.13t",
    every_case_is_exact_on_3_14t "3.14t",
);

/// A loop through functions that C code calls back: at most of its instructions the frame pointer
/// tells who called.
const COMPUTES: &str = "
import functools
print('ready', flush=True)
words = [str(i) for i in range(2000)]
while True:
    sorted(words, key=lambda word: functools.reduce(lambda a, b: a + ord(b), word, 0))
";
/// SIGSTOPs at moments of no choice.
const MOMENTS: usize = 40;

#[test]
fn a_stopped_process_is_read_with_its_registers_and_stays_stopped() {
    let Some(python) = Python::find("3.11") else {
        return;
    };
    let mut target = python.start_source(COMPUTES, &[]);
    target.ready();
    let pid = Pid::from_raw(target.pid());
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, after) = stat.rsplit_once(") ").unwrap();
        after.as_bytes()[0]
    };
    let mut outside_calls = 0;
    for _ in 0..MOMENTS {
        kill(pid, Signal::SIGSTOP).unwrap();
        while state() != b'T' {
            std::thread::yield_now();
        }
        let place = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
        let before = place();
        let threads = dump(target.pid(), &[]);
        let main = &threads[0];
        if before.starts_with("-1 ") {
            outside_calls += 1;
            assert_eq!(main["capture"], "stopped", "{main:#}");
        }
        assert_eq!(main["state"], "stopped", "{main:#}");
        assert!(main["partial"].is_null(), "{main:#}");
        let guesses = main["frames"].as_array().unwrap();
        assert!(
            guesses.iter().all(|frame| frame["guess"] == false),
            "{main:#}"
        );
        // The kernel lets it go from our stop into that of SIGSTOP, where it was. Until it gets a
        // CPU for that it is in state R.
        wait_until("it is stopped as before", || state() == b'T');
        assert_eq!(place(), before, "it did not run meanwhile");
        kill(pid, Signal::SIGCONT).unwrap();
        while state() == b'T' {
            std::thread::yield_now();
        }
    }
    assert!(outside_calls > 0, "it was always in a system call");
}
