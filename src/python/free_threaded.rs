//! Recognizes a free-threaded interpreter from its file, whether it runs or not.

use super::discover::parse_version_hex;
use super::layout::debug_offsets::{HEADER_SIZE, parse_header};
use crate::elf::names::ElfNames;
use crate::memory::Bytes;
use crate::model::text::file_name;
use regex::bytes::Regex;

/// The version of the free-threaded Python in this file, or in the library that it is linked with;
/// `None` for other files.
///
/// `_PyRuntime` is initialised in the file, and begins with `_Py_DebugOffsets`, which has a flag
/// for it (3.13 on). A build with a separate library names it `libpython3.13t.so.1.0` (`ABIFLAGS`
/// in configure.ac).
pub fn free_threaded_version(path: &str, file: Option<&dyn Bytes>) -> Option<String> {
    if let Some(file) = file.and_then(ElfNames::parse) {
        let runtime = file
            .section_bytes(".PyRuntime")
            .filter(|runtime| runtime.len() >= HEADER_SIZE);
        let header = runtime.and_then(|runtime| parse_header(&runtime[..HEADER_SIZE]));
        if let Some(header) = header {
            let version = parse_version_hex(header.version_hex).map(|(_, text)| text);
            return header.free_threaded.then(|| version.unwrap_or_default());
        }
        let libraries = file.section_bytes(".dynstr").unwrap_or_default();
        if let Some(version) = named(r"(?-u)\x00libpython(3\.\d+)t\.so", &libraries) {
            return Some(version);
        }
    }
    let name = file_name(path);
    named(
        r"(?-u)^(?:lib)?python(3\.\d+)td?(?:\.so.*)?(?: \(deleted\))?$",
        name.as_bytes(),
    )
}

fn named(pattern: &str, text: &[u8]) -> Option<String> {
    let found = Regex::new(pattern).ok()?.captures(text)?.get(1)?;
    Some(String::from_utf8_lossy(found.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_name() {
        let of = |path| free_threaded_version(path, None);
        for path in [
            "/usr/bin/python3.13t",
            "/opt/lib/libpython3.13t.so.1.0",
            "python3.13t (deleted)",
            "python3.13td",
        ] {
            assert_eq!(of(path).as_deref(), Some("3.13"), "{path}");
        }
        for path in [
            "/usr/bin/python3.13",
            "/opt/lib/libpython3.13.so.1.0",
            "/x/pytest3.13t",
            "python3.13-tool",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
