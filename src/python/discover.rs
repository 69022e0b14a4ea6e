//! Finds the interpreter of a process: which of its files is Python, its version, and the address
//! of `_PyRuntime`.

use super::layout::{GilPlace, Layout, debug_offsets, tables};
use super::threads::read_interpreters;
use crate::elf::names::ElfNames;
use crate::memory::{Bytes, Memory, ReadError};
use crate::model::code::PythonVersion;
use crate::model::text::file_name;
use regex::bytes::Regex;

/// The oldest version with a layout.
const OLDEST: PythonVersion = PythonVersion::new(3, *PythonVersion::SUPPORTED.start());

/// An ELF file that is mapped in the target: its Python binary, or a libpython.
#[derive(Clone, Copy)]
pub struct PythonImage<'a> {
    /// Its path in the target's root.
    pub path: &'a str,
    /// Run-time address minus the file's virtual address.
    pub load_bias: u64,
    pub bytes: &'a dyn Bytes,
}

/// A Python interpreter, ready to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    pub version: PythonVersion,
    /// The version as precisely as known: `3.11.7`, or only `3.10`.
    pub version_text: String,
    /// Whether the build can run without the global lock (3.13 on).
    pub free_threaded: bool,
    /// Address of `_PyRuntime`.
    pub runtime_address: u64,
    /// Offsets of the fields of its structures.
    pub layout: Layout,
    /// Address of `PyCode_Type`, the type of every code object, if its symbol was found.
    pub code_type: Option<u64>,
    /// Address of `_Py_NoneStruct`, if its symbol was found.
    pub none: Option<u64>,
}

/// Why no interpreter was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// None of the files contains an interpreter.
    #[error("not a Python process")]
    NotPython,
    /// The interpreter has not started yet: try again.
    #[error("Python is still starting")]
    NotYetInitialised,
    /// A version before 3.10, which only the fallback reads.
    #[error("Python {0} is older than 3.10")]
    OlderVersion(String),
    /// A version that is newer than this torchspy.
    #[error("Python {0} is newer than this torchspy knows: its Python frames are left out")]
    NewerVersion(String),
    /// Another implementation of Python than CPython.
    #[error("{0}, another implementation of Python than CPython: its Python frames are left out")]
    OtherImplementation(&'static str),
    /// Its program is one of 32 bits.
    #[error("a 32-bit program: torchspy reads those of 64 bits")]
    Narrow,
    #[error("a program of Windows, under Wine: its Python frames are left out")]
    Windows,
    #[error("the interpreter cannot be read: {0}")]
    Unreadable(ReadError),
    /// What was read is not an interpreter.
    #[error("the interpreter's state makes no sense: {0}")]
    Invalid(&'static str),
}

impl From<ReadError> for DiscoverError {
    fn from(error: ReadError) -> Self {
        DiscoverError::Unreadable(error)
    }
}

/// Whether a file's name suggests that it contains an interpreter. An executable may contain one
/// under any name, so a process's own is always tried.
pub fn could_be_python(path: &str) -> bool {
    let name = file_name(path);
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    name.starts_with("python") || name.starts_with("libpython")
}

/// Debian's and PyPy's own builds: `pypy3.9`, `pypy3.10-c`, `libpypy3.10-c.so`.
fn is_pypy(path: &str) -> bool {
    let name = file_name(path);
    name.strip_prefix("lib").unwrap_or(name).starts_with("pypy")
}

/// Wine's loader, which runs a Python of Windows: `wine64-preloader`, `wine-preloader`, `wine`.
fn is_wine(path: &str) -> bool {
    let name = file_name(path);
    let name = name.strip_suffix("-preloader").unwrap_or(name);
    matches!(name, "wine" | "wine64")
}

/// Whether it is an ELF file of class 1 (`ELFCLASS32`).
fn is_narrow(image: &PythonImage<'_>) -> bool {
    let start = image.bytes.copy(0..5);
    start.is_some_and(|start| start == b"\x7fELF\x01")
}

/// Finds the interpreter in a process that has `images` mapped. Repeat it while it returns
/// [`DiscoverError::NotYetInitialised`].
///
/// # Errors
/// [`DiscoverError`].
pub fn discover(
    images: &[PythonImage<'_>],
    memory: &dyn Memory,
) -> Result<Interpreter, DiscoverError> {
    let mut reason = DiscoverError::NotPython;
    for image in images {
        let Some(file) = ElfNames::parse(image.bytes) else {
            if is_narrow(image) {
                reason = DiscoverError::Narrow;
            }
            continue;
        };
        let Some(symbols) = Symbols::find(image, &file) else {
            if is_pypy(image.path) {
                reason = DiscoverError::OtherImplementation("PyPy");
            } else if is_wine(image.path) {
                reason = DiscoverError::Windows;
            }
            continue;
        };
        match read_interpreter(image, &file, &symbols, memory) {
            Ok(interpreter) => return Ok(interpreter),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// Symbols of an image, as addresses in the target.
struct Symbols {
    runtime: Option<u64>,
    version: Option<u64>,
    code_type: Option<u64>,
    none: Option<u64>,
}

impl Symbols {
    /// `None` if the file is not an interpreter.
    fn find(image: &PythonImage<'_>, file: &ElfNames<'_>) -> Option<Self> {
        let names = [
            "_PyRuntime",
            "Py_Version",
            "PyCode_Type",
            "_Py_NoneStruct",
            "Py_GetVersion",
        ];
        let [runtime, version, code_type, none, any_python] = file
            .symbols(names)
            .map(|found| found.map(|value| value.wrapping_add(image.load_bias)));
        // 3.10 to 3.12 builds put `_PyRuntime` in a section of its own, as do all since.
        let section = || {
            Some(
                file.section(".PyRuntime")?
                    .address
                    .wrapping_add(image.load_bias),
            )
        };
        let runtime = runtime.or_else(section);
        (runtime.is_some() || any_python.is_some()).then_some(Self {
            runtime,
            version,
            code_type,
            none,
        })
    }
}

fn read_interpreter(
    image: &PythonImage<'_>,
    file: &ElfNames<'_>,
    symbols: &Symbols,
    memory: &dyn Memory,
) -> Result<Interpreter, DiscoverError> {
    let Some(runtime_address) = symbols.runtime else {
        // `_PyRuntime` was added in 3.7.
        return Err(match guess_version(image.path, file) {
            Some((version, _)) if version >= OLDEST => DiscoverError::Invalid("no _PyRuntime"),
            Some((_, text)) => DiscoverError::OlderVersion(text),
            None => DiscoverError::OlderVersion("(before 3.7)".into()),
        });
    };
    let mut header = [0; debug_offsets::HEADER_SIZE];
    memory.read_exact(runtime_address, &mut header)?;
    let header = debug_offsets::parse_header(&header);
    let (version, version_text) = match (&header, symbols.version) {
        (Some(header), _) => parse_version_hex(header.version_hex),
        (None, Some(address)) => parse_version_hex(memory.read_u64(address)?),
        (None, None) => guess_version(image.path, file),
    }
    .ok_or(DiscoverError::Invalid("no version"))?;
    let free_threaded = header.is_some_and(|header| header.free_threaded);
    let layout = match header {
        Some(_) => read_debug_offsets(
            version,
            free_threaded,
            &version_text,
            runtime_address,
            memory,
        )?,
        // From 3.13 on the runtime begins with its offsets from the start: this is something else.
        None if version >= PythonVersion::new(3, 13) => {
            return Err(DiscoverError::Invalid("no debug offsets"));
        }
        None if version < OLDEST => return Err(DiscoverError::OlderVersion(version_text)),
        None => tables::for_version(version)
            .ok_or_else(|| DiscoverError::NewerVersion(version_text.clone()))?,
    };
    let interpreter = Interpreter {
        version,
        version_text,
        free_threaded,
        runtime_address,
        layout,
        code_type: symbols.code_type,
        none: symbols.none,
    };
    check_started(&interpreter, memory)?;
    Ok(interpreter)
}

fn read_debug_offsets(
    version: PythonVersion,
    free_threaded: bool,
    text: &str,
    runtime_address: u64,
    memory: &dyn Memory,
) -> Result<Layout, DiscoverError> {
    let unsupported = || DiscoverError::NewerVersion(text.to_owned());
    let size = debug_offsets::size_for(version).ok_or_else(unsupported)?;
    let mut bytes = [0; debug_offsets::MAX_SIZE];
    let bytes = bytes.get_mut(..size).ok_or_else(unsupported)?;
    memory.read_exact(runtime_address, bytes)?;
    debug_offsets::parse_layout(version, free_threaded, bytes)
        .map_err(|error| DiscoverError::Invalid(error.field))
}

/// An interpreter has started once it has a thread that points back to it.
fn check_started(interpreter: &Interpreter, memory: &dyn Memory) -> Result<(), DiscoverError> {
    let layout = &interpreter.layout;
    let pointer = |base: u64, offset: u32| memory.read_u64(base.wrapping_add(offset.into()));
    let state = pointer(interpreter.runtime_address, layout.interpreters_head)?;
    if state == 0 {
        return Err(DiscoverError::NotYetInitialised);
    }
    if !state.is_multiple_of(8) {
        return Err(DiscoverError::Invalid("interpreter list"));
    }
    // The newest comes first, and an idle one may have no thread (3.13 on).
    let mut started = None;
    for state in read_interpreters(interpreter, memory)? {
        let thread = pointer(state, layout.interpreter.threads_head)?;
        if thread != 0 {
            started = Some((state, thread));
            break;
        }
    }
    let Some((state, thread)) = started else {
        return Err(DiscoverError::NotYetInitialised);
    };
    let back = pointer(thread, layout.thread.interpreter)?;
    if back == 0 {
        return Err(DiscoverError::NotYetInitialised);
    }
    if let GilPlace::BehindInterpreter(offset) = layout.gil.place
        && pointer(back, offset)? == 0
    {
        return Err(DiscoverError::NotYetInitialised);
    }
    if back != state {
        return Err(DiscoverError::Invalid("thread list"));
    }
    Ok(())
}

/// `PY_VERSION_HEX`: major, minor, micro, and a level (0xf for final) with its serial, a byte each.
pub(super) fn parse_version_hex(hex: u64) -> Option<(PythonVersion, String)> {
    let [level, micro, minor, major] = u32::try_from(hex).ok()?.to_le_bytes();
    if major != 3 {
        return None;
    }
    let suffix = match level >> 4 {
        0xa => format!("a{}", level & 0xf),
        0xb => format!("b{}", level & 0xf),
        0xc => format!("rc{}", level & 0xf),
        _ => String::new(),
    };
    Some((
        PythonVersion::new(major, minor),
        format!("{major}.{minor}.{micro}{suffix}"),
    ))
}

/// The version of a Python without `Py_Version` (before 3.11): from the directory of its library
/// (`python3.10`), whose name the file contains, else from its file's name.
fn guess_version(path: &str, file: &ElfNames<'_>) -> Option<(PythonVersion, String)> {
    let constants = file.section_bytes(".rodata").unwrap_or_default();
    let name = file_name(path).as_bytes();
    let named = first_version(r"(?-u)python([23])\.(\d{1,2})[a-z]{0,2}\x00", &constants)
        .or_else(|| first_version(r"(?-u)python([23])\.(\d{1,2})", name))?;
    let full = Regex::new(&format!(
        r"(?-u)[^0-9.]({}\.{}\.\d{{1,2}})\x00",
        named.major, named.minor
    ))
    .ok();
    let full = full.and_then(|regex| regex.captures(&constants)?.get(1));
    let text = full.map_or_else(
        || named.to_string(),
        |found| String::from_utf8_lossy(found.as_bytes()).into_owned(),
    );
    Some((named, text))
}

fn first_version(pattern: &str, text: &[u8]) -> Option<PythonVersion> {
    let found = Regex::new(pattern).ok()?.captures(text)?;
    let number = |index| {
        std::str::from_utf8(found.get(index)?.as_bytes())
            .ok()?
            .parse()
            .ok()
    };
    Some(PythonVersion::new(number(1)?, number(2)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Architecture, Machine};

    #[test]
    fn names_that_could_be_python() {
        for path in [
            "/usr/bin/python3.11",
            "/opt/x/lib/libpython3.12.so.1.0",
            "python (deleted)",
        ] {
            assert!(could_be_python(path), "{path}");
        }
        assert!(!could_be_python("/usr/lib/python3/dist-packages/x.so"));
    }

    #[test]
    fn version_numbers() {
        let parse = |hex| parse_version_hex(hex).map(|(_, text)| text);
        assert_eq!(parse(0x030b_07f0).as_deref(), Some("3.11.7"));
        assert_eq!(parse(0x030f_00a3).as_deref(), Some("3.15.0a3"));
        assert_eq!(parse(0x030e_00c1).as_deref(), Some("3.14.0rc1"));
        assert_eq!(parse(0), None);
        assert_eq!(parse(u64::MAX), None);
    }

    #[test]
    fn a_process_without_python_is_none() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = PythonImage {
            path: "/usr/bin/python3",
            load_bias: 0,
            bytes: &bytes,
        };
        let memory = crate::memory::SnapshotMemory::default();
        assert_eq!(discover(&[image], &memory), Err(DiscoverError::NotPython));
        let junk = PythonImage {
            bytes: &b"#!/bin/sh".to_vec(),
            ..image
        };
        assert_eq!(discover(&[junk], &memory), Err(DiscoverError::NotPython));
    }

    #[test]
    fn what_is_no_cpython_of_64_bits_is_named() {
        let memory = crate::memory::SnapshotMemory::default();
        let own = std::fs::read("/proc/self/exe").unwrap();
        let image = PythonImage {
            path: "/usr/bin/pypy3.10",
            load_bias: 0,
            bytes: &own,
        };
        let pypy = DiscoverError::OtherImplementation("PyPy");
        assert_eq!(discover(&[image], &memory), Err(pypy));
        let wine = PythonImage {
            path: "/usr/lib/wine/wine64-preloader",
            ..image
        };
        assert_eq!(discover(&[wine], &memory), Err(DiscoverError::Windows));
        let narrow = PythonImage {
            bytes: &b"\x7fELF\x01\x01 and the rest".to_vec(),
            ..image
        };
        assert_eq!(discover(&[narrow], &memory), Err(DiscoverError::Narrow));
    }

    /// A file of one section, `.PyRuntime`, at this address.
    fn file_with_runtime(address: u64) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.PyRuntime\0";
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&Machine::ELF_MACHINE.to_le_bytes());
        // e_shoff, e_shentsize, e_shnum, e_shstrndx: the names' section is the last of three.
        file[40..48].copy_from_slice(&64_u64.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&3_u16.to_le_bytes());
        file[62..64].copy_from_slice(&2_u16.to_le_bytes());
        let names_at = 4 * 64_u64;
        // sh_name and sh_type as one word, sh_flags, sh_addr, sh_offset, sh_size; the rest is 0.
        let runtime = [1 | 1 << 32, 3, address, 0, 0];
        let names = [3 << 32, 0, 0, names_at, NAMES.len() as u64];
        for words in [[0; 5], runtime, names] {
            file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            file.resize(file.len() + 24, 0);
        }
        file.extend(NAMES);
        file
    }

    /// The result if `_PyRuntime` begins with `header`, and has 16 as the offset of every field.
    fn discover_runtime(header: [u64; 3]) -> Result<Interpreter, DiscoverError> {
        let bytes = file_with_runtime(0x1000);
        let image = PythonImage {
            path: "/usr/bin/python3",
            load_bias: 0x5000_0000,
            bytes: &bytes,
        };
        let offsets = [16; debug_offsets::MAX_SIZE / 8];
        let words = header.into_iter().chain(offsets);
        let mut memory = crate::memory::SnapshotMemory::default();
        memory.insert(0x5000_1000, words.flat_map(u64::to_le_bytes).collect());
        discover(&[image], &memory)
    }

    #[test]
    fn a_version_that_came_later_is_refused_and_not_read_by_the_tables_of_another() {
        let cookie = u64::from_le_bytes(*debug_offsets::COOKIE);
        // For a known version these offsets are valid, and lead to an empty list of interpreters.
        assert_eq!(
            discover_runtime([cookie, 0x030f_00f0, 0]),
            Err(DiscoverError::NotYetInitialised)
        );
        for (newer, text) in [
            (0x0310_00f0, "3.16.0"),
            (0x0310_00a1, "3.16.0a1"),
            (0x0363_07f0, "3.99.7"),
        ] {
            assert_eq!(
                discover_runtime([cookie, newer, 0]),
                Err(DiscoverError::NewerVersion(text.to_owned()))
            );
        }
        // One that no longer begins with its offsets does not say which it is.
        assert_eq!(
            discover_runtime([0, 0x0310_00f0, 0]),
            Err(DiscoverError::Invalid("no version"))
        );
    }
}
