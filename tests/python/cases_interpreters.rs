//! Threads in code of subinterpreters, on every interpreter that is installed: the frames of each
//! interpreter that a thread runs code of, in the order in which they were called.

use crate::on_each_python;
use crate::stack_case::{Exceptions, check};

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
    every_case_is_exact_on_3_13t "3.13t",
    every_case_is_exact_on_3_14t "3.14t",
);
