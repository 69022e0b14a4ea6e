//! Line tables of code objects: any bytes give some ranges, and never more than there are bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use torchspy::model::code::PythonVersion;
use torchspy::python::line_table::{line_for, ranges};

// The minor version, the first line and an instruction, and the rest is the table.
fuzz_target!(|input: &[u8]| {
    let Some((&[minor, ref numbers @ ..], table)) = input.split_first_chunk::<9>() else {
        return;
    };
    let version = PythonVersion::new(3, 10 + minor % 6);
    let number = |at: usize| u32::from_le_bytes(numbers[at..at + 4].try_into().unwrap());
    let (first_line, instruction) = (number(0), number(4));
    let mut end = 0;
    let mut found = None;
    for (count, range) in ranges(version, table, first_line).enumerate() {
        assert!(count < table.len());
        assert_eq!(range.start, end);
        if found.is_none() && instruction < range.end {
            found = Some(range.line);
        }
        end = range.end;
    }
    let line = line_for(version, table, first_line, instruction);
    assert_eq!(line, found.flatten());
});
