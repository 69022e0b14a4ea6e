//! Threads on both sides of forks, and workers of multiprocessing, on every interpreter that is
//! installed: from the fork on the child's stack is its own.

use crate::faults::{How, Recorder, program};
use crate::python_target::Python;
use crate::stack_case::{Exceptions, Place, check, samples};
use crate::{on_each_engine, on_each_python};
use torchspy::recording::reader::Recording;

const EXCEPTIONS: &Exceptions = &[];
const PROGRAM: &str = "stack_forks.py";

fn every_case_is_exact(version: &str) {
    check(version, (PROGRAM, &[]), 32, EXCEPTIONS);
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

/// Each process computes in a function that the other never calls.
fn a_recorded_child_has_a_stack_of_its_own(version: &str, engine: &str) {
    let Some(python) = Python::find(version).filter(|python| python.root.is_none()) else {
        return;
    };
    let how = How {
        options: &["--rate", "500", "--max-stopped", "off", "--engine", engine],
        fault: None,
    };
    let command = Recorder::launch_command(&[&python.path, &program(PROGRAM), "spin"], how);
    let folder = tempfile::tempdir().unwrap();
    let recorded = Recorder::spawn(command, folder).finish().expect_success();
    let recording = Recording::read(&recorded.path()).unwrap();
    let parent = recording.run.pid;
    let (mut of_parent, mut of_children) = (0, 0);
    for sample in samples(&recording) {
        let count = |name: &str| {
            let named = |frame: &&Place| frame.0 == name;
            sample.frames.iter().filter(named).count()
        };
        let (own, other, samples) = match sample.pid == parent {
            true => ("parent_alone", "child_alone", &mut of_parent),
            false => ("child_alone", "parent_alone", &mut of_children),
        };
        let frames = &sample.frames;
        assert_eq!(count(other), 0, "{version}, {}: {frames:?}", sample.pid);
        if count(own) == 1 {
            *samples += 1;
            let depth = count("before_fork");
            assert!([1, 101, 401].contains(&depth), "{version}: {frames:?}");
            // The leaf, `forks`, `main` and the module.
            assert_eq!(frames.len(), depth + 4, "{version}: {frames:?}");
        }
    }
    assert!(
        of_parent > 30 && of_children > 30,
        "{of_parent} {of_children}"
    );
}

on_each_engine!(a_recorded_child_has_a_stack_of_its_own:
    a_recorded_child_has_a_stack_of_its_own_on_3_10 "3.10",
    a_recorded_child_has_a_stack_of_its_own_on_3_11 "3.11",
    a_recorded_child_has_a_stack_of_its_own_on_3_12 "3.12",
    a_recorded_child_has_a_stack_of_its_own_on_3_13 "3.13",
    a_recorded_child_has_a_stack_of_its_own_on_3_13t "3.13t",
    a_recorded_child_has_a_stack_of_its_own_on_3_14t "3.14t",
);
