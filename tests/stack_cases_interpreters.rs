//! Threads in code of subinterpreters, on every interpreter that is installed: the frames of each
//! interpreter that a thread runs code of, in the order in which they were called.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod installed;
mod python_target;
mod stack_case;

use stack_case::{Exceptions, check};

const EXCEPTIONS: &Exceptions = &[];
const PROGRAM: &str = "stack_interpreters.py";

fn every_case_is_exact(version: &str) {
    check(version, (PROGRAM, &[]), 18, EXCEPTIONS);
    check(version, (PROGRAM, &["main"]), 1, EXCEPTIONS);
}

on_each_python!(every_case_is_exact:
    every_case_is_exact_on_3_10 "3.10",
    every_case_is_exact_on_3_11 "3.11",
    every_case_is_exact_on_3_12 "3.12",
    every_case_is_exact_on_3_13 "3.13",
    every_case_is_exact_on_3_14 "3.14",
    every_case_is_exact_on_3_15 "3.15",
);
