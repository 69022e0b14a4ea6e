//! A process's current environment: ranks that a program sets for itself after exec are not in
//! /proc.

use super::image::Opener;
use super::maps_reader::MapsReader;
use crate::arch::{Architecture, Machine};
use crate::elf::names::ElfNames;
use crate::memory::Memory;
use crate::native::loaded::LoadedModules;
use crate::native::modules::ModuleStore;
use crate::os::process_info::live_environment;
use crate::os::vm_read::ProcessMemory;
use rustc_hash::FxHasher;
use std::hash::Hasher;
use std::sync::Arc;

/// Most entries that are read.
const MAX_ENTRIES: u64 = 4096;

/// The allow-listed variables of a process as they are now; `None` if they cannot be read, or if
/// there are none.
pub fn current_environment(pid: i32) -> Option<Vec<(String, String)>> {
    let mut mappings = MapsReader::new(pid).read()?;
    let program = mappings.first()?.path.clone();
    mappings.retain(|mapping| mapping.path == program || is_libc(&mapping.path));
    let memory = ProcessMemory::new(pid);
    let mut modules = LoadedModules::new(Arc::new(ModuleStore::default()));
    modules.refresh(&mappings, &Opener { pid }, &memory);
    LiveEnvironment::default().changed(&modules, &memory)
}

/// The address of a process's environment, and its fingerprint at the last read.
#[derive(Debug, Default)]
pub(super) struct LiveEnvironment {
    /// The address of `environ`; the inner `None` means that the search found nothing.
    variable: Option<Option<u64>>,
    /// Hash of the array's address and entries. setenv(3) and putenv(3) change one or the other.
    fingerprint: u64,
}

impl LiveEnvironment {
    /// The allow-listed variables, if anything changed since the last call. Otherwise it costs two
    /// small reads.
    pub(super) fn changed(
        &mut self,
        modules: &LoadedModules,
        memory: &dyn Memory,
    ) -> Option<Vec<(String, String)>> {
        let variable = *self.variable.get_or_insert_with(|| find_variable(modules));
        let variable = variable?;
        let fingerprint = fingerprint(variable, memory)?;
        if fingerprint == self.fingerprint {
            return None;
        }
        self.fingerprint = fingerprint;
        live_environment(variable, memory)
            .ok()
            .filter(|kept| !kept.is_empty())
    }
}

/// The address of libc's `environ`. The program is searched first, as the dynamic linker does: a
/// program that was linked against the variable holds it itself (a copy relocation), and libc uses
/// that.
fn find_variable(modules: &LoadedModules) -> Option<u64> {
    modules
        .modules()
        .enumerate()
        .filter(|(position, (module, _))| *position == 0 || is_libc(&module.info.path))
        .find_map(|(_, (module, bias))| {
            let file = ElfNames::parse(module.image()?.bytes())?;
            let [environ, with_underscores] = file.symbols(["environ", "__environ"]);
            Some(environ.or(with_underscores)?.wrapping_add(bias))
        })
}

/// glibc's names (`libc.so.6`, `libc-2.31.so`) and musl's (`ld-musl-x86_64.so.1`,
/// `libc.musl-x86_64.so.1`).
fn is_libc(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ["libc.so", "libc-", "libc.musl", "ld-musl"]
        .iter()
        .any(|start| name.starts_with(start))
}

fn fingerprint(variable: u64, memory: &dyn Memory) -> Option<u64> {
    const CHUNK: u64 = 64;
    let array = memory.read_u64(variable).ok().filter(|&array| array != 0)?;
    let mut hasher = FxHasher::default();
    hasher.write_u64(array);
    let mut next = array;
    for _ in 0..MAX_ENTRIES / CHUNK + CHUNK {
        // At most to the end of a page: the next one may not be mapped.
        let length = (Machine::PAGE_BYTES - next % Machine::PAGE_BYTES).min(CHUNK * 8);
        let bytes = memory
            .read_bytes(next, usize::try_from(length).ok()?)
            .ok()?;
        for entry in bytes.chunks_exact(8) {
            if entry == [0; 8] {
                return Some(hasher.finish());
            }
            hasher.write(entry);
        }
        next = next.checked_add(length)?;
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SnapshotMemory;

    fn memory(entries: &[u64]) -> SnapshotMemory {
        let mut memory = SnapshotMemory::default();
        memory.insert(0x1000, 0x2ff0_u64.to_le_bytes().to_vec());
        let mut bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| entry.to_le_bytes())
            .collect();
        bytes.resize(0x1010, 0);
        memory.insert(0x2ff0, bytes);
        memory
    }

    #[test]
    fn another_entry_is_another_environment() {
        let of = |entries: &[u64]| fingerprint(0x1000, &memory(entries));
        let many: Vec<u64> = (1..100).collect();
        assert!(of(&many).is_some());
        assert_eq!(of(&many), of(&many));
        for changed in [0, 1, 2, 98] {
            let mut other = many.clone();
            other[changed] = 7777;
            assert_ne!(of(&other), of(&many), "{changed}");
        }
        assert_ne!(of(&many[..98]), of(&many));
        assert_eq!(fingerprint(0x9000, &memory(&many)), None);
    }

    #[test]
    fn an_endless_array_ends() {
        struct Endless;
        impl Memory for Endless {
            fn read_exact(
                &self,
                _: u64,
                buffer: &mut [u8],
            ) -> Result<(), crate::memory::ReadError> {
                buffer.fill(1);
                Ok(())
            }
        }
        assert!(fingerprint(0x1000, &Endless).is_some());
    }
}
