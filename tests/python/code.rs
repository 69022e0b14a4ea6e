//! Code objects and line tables of real interpreters.

use crate::python_target::Python;
use std::collections::HashSet;
use torchspy::memory::{FaultyMemory, Memory};
use torchspy::model::code::CodeInfo;
use torchspy::model::frame::Frame;
use torchspy::model::ids::CodeId;
use torchspy::python::code_object::{CodeCache, CodeError};
use torchspy::python::line_table::{line_for, ranges};

/// Address, name, file, first line, last line, and the bytecode's length.
type Made = (u64, String, String, u32, u32, u32);

/// Code objects that are freed, and others made in their place, are noticed.
fn check_reuse(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/py_code.py");
    let mut target = python.start(program.as_ref(), &[]);
    let mut cache: Option<CodeCache> = None;
    let mut addresses = HashSet::new();
    let (mut reused, mut hashes, mut given) = (0, HashSet::new(), 0);
    for turn in 0..150 {
        target.send("next");
        let made: Made = serde_json::from_str(&target.line()).unwrap();
        let memory = target.memory();
        let cache = cache.get_or_insert_with(|| CodeCache::new(&target.discover().unwrap()));
        reused += u32::from(!addresses.insert(made.0));
        let mut fresh = 0;
        for _ in 0..2 {
            // With the address twice, and with others that may be gone.
            let mut asked = vec![made.0, made.0];
            asked.extend(addresses.iter().take(3));
            cache.resolve(&asked, &memory, |_: &CodeInfo| {
                given += 1;
                CodeId(given)
            });
            let code = cache.get(made.0).unwrap();
            assert_eq!(
                (&code.info.name, &code.info.file, code.info.first_line),
                (&made.1, &made.2, made.3),
                "{turn}"
            );
            assert_eq!(
                (code.line(made.5 - 2), code.line(Frame::NO_INSTRUCTION)),
                (made.4, made.3),
                "{turn}"
            );
            assert!(!code.is_shim);
            hashes.insert((turn % 5, code.info.content_hash));
            fresh = code.id.0;
        }
        let mut again = 0;
        cache.resolve(&[made.0], &memory, |_: &CodeInfo| {
            again += 1;
            CodeId(0)
        });
        assert_eq!(
            (again, cache.get(made.0).unwrap().id.0),
            (0, fresh),
            "a known one was read again"
        );
    }
    // Without the GIL memory is reused later.
    assert!(
        reused > 20 || python.path.ends_with('t'),
        "the program reused {reused} addresses: this tests nothing"
    );
    // The hash is of the content: the same for the same body, wherever it stands in its file.
    assert_eq!(hashes.len(), 5, "{hashes:x?}");
}

/// What cannot be read, or is no code object, has no name, and harms no other.
fn check_faults(python: &str) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/py_code.py");
    let mut target = python.start(program.as_ref(), &[]);
    target.send("next");
    let made: Made = serde_json::from_str(&target.line()).unwrap();
    let memory = target.memory();
    let interpreter = target.discover().unwrap();
    let code_type = interpreter.code_type.unwrap();
    let mut cache = CodeCache::new(&interpreter);
    let id = |_: &CodeInfo| CodeId(1);
    cache.resolve(&[made.0, code_type, 8, u64::MAX - 7], &memory, id);
    assert!(cache.get(made.0).is_ok());
    assert_eq!(cache.get(code_type).unwrap_err(), CodeError::Gone);
    assert!(matches!(cache.get(8).unwrap_err(), CodeError::Read(_)));
    assert!(matches!(
        cache.get(u64::MAX - 7).unwrap_err(),
        CodeError::Read(_)
    ));

    let name = memory
        .read_u64(made.0 + u64::from(interpreter.layout.code.name))
        .unwrap();
    let faulty = FaultyMemory::new(
        memory,
        name,
        name + 8 + u64::from(interpreter.layout.unicode.ascii_data),
    );
    let mut cache = CodeCache::new(&interpreter);
    cache.resolve(&[made.0], &faulty, id);
    assert!(matches!(cache.get(made.0).unwrap_err(), CodeError::Read(_)));
    assert!(faulty.reached() > 0);
    cache.resolve(&[made.0], &memory, id);
    assert_eq!(cache.get(made.0).unwrap().info.name, made.1);
}

/// Every instruction of a good part of the standard library has the line that Python's own
/// `co_lines` gives it.
fn check_line_tables(python: &str, minor: u8) {
    let Some(python) = Python::find(python) else {
        return;
    };
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/py_line_tables.py"
    );
    let mut target = python.start(program.as_ref(), &[]);
    let version = torchspy::model::code::PythonVersion::new(3, minor);
    let tables = target.ready();
    assert!(tables.len() > 700, "{}", tables.len());
    for text in tables {
        type Table = (u32, String, u32, Vec<(u32, u32, Option<u32>)>);
        let (first, hex, length, lines): Table = serde_json::from_str(&text).unwrap();
        let digits: Vec<u8> = hex
            .bytes()
            .map(|digit| (digit as char).to_digit(16).unwrap() as u8)
            .collect();
        let table: Vec<u8> = digits
            .chunks_exact(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect();
        for (start, end, line) in lines {
            for instruction in (start..end).step_by(2) {
                assert_eq!(
                    line_for(version, &table, first, instruction),
                    line,
                    "{instruction} of {text}"
                );
            }
        }
        assert_eq!(ranges(version, &table, first).last().unwrap().end, length);
    }
}

macro_rules! on_each {
    ($($module:ident $version:literal $minor:literal),*) => {$(
        mod $module {
            #[test]
            fn freed_and_reused_code_is_noticed() {
                super::check_reuse($version);
            }

            #[test]
            fn unreadable_code_has_no_name() {
                super::check_faults($version);
            }

            #[test]
            fn lines_are_those_that_python_reads() {
                super::check_line_tables($version, $minor);
            }
        }
    )*};
}

on_each!(
    python_3_10 "3.10" 10, python_3_11 "3.11" 11, python_3_12 "3.12" 12, python_3_13 "3.13" 13,
    python_3_14 "3.14" 14, python_3_15 "3.15" 15, python_3_13t "3.13t" 13, python_3_14t "3.14t" 14
);
