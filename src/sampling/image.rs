//! The program of one process: its modules, unwinder, interpreter and code objects.

use super::allocator_readings::AllocatorReadings;
use super::live_environment::LiveEnvironment;
use super::maps_reader::MapsReader;
use crate::memory::{Bytes, Memory};
use crate::model::mapping::Mapping;
use crate::native::image::ModuleBytes;
use crate::native::loaded::{LoadedModules, ModuleOpener};
use crate::native::modules::{Module, ModuleStore};
use crate::native::unwind::Unwinder;
use crate::os::clock::monotonic_ns;
use crate::os::elf_file::ElfFile;
use crate::os::vm_read::ProcessMemory;
use crate::python::code_object::CodeCache;
use crate::python::discover::{DiscoverError, Interpreter, PythonImage, could_be_python, discover};
use crate::torch::probe::ModuleProbe;
use crate::torch::probe::progress::ProgressProbe;
use std::sync::Arc;

/// Shortest time between two reads of the maps, ns; doubled after each read without a change.
const FIRST_REFRESH_NS: u64 = 5_000_000;
const SLOWEST_REFRESH_NS: u64 = 10_000_000_000;
/// Time between two searches for an interpreter while it may be starting, ns, with backoff; after
/// that it is searched for when the modules change.
const FIRST_DISCOVERY_NS: u64 = 3_000_000;
const SLOWEST_DISCOVERY_NS: u64 = 50_000_000;
const DISCOVERY_PATIENCE_NS: u64 = 10_000_000_000;

/// Opens the files that a process has mapped.
pub(super) struct Opener {
    pub(super) pid: i32,
}

impl ModuleOpener for Opener {
    fn open(&self, mapping: &Mapping) -> Option<ModuleBytes> {
        Some(Arc::new(ElfFile::open(self.pid, &mapping.path).ok()?))
    }

    fn open_mapped(&self, mapping: &Mapping) -> Option<ModuleBytes> {
        Some(Arc::new(ElfFile::open_mapped(self.pid, mapping).ok()?))
    }
}

/// Result of interpreter discovery.
#[derive(Debug)]
pub(super) enum Python {
    /// Not searched for yet, or still starting.
    Pending,
    Found(Arc<Interpreter>),
    /// There is no interpreter, or none that can be read directly. A version that only the fallback
    /// reads is [`DiscoverError::OlderVersion`].
    None(DiscoverError),
}

/// One process's program.
pub(super) struct ProcessImage {
    pid: i32,
    pub(super) memory: ProcessMemory,
    pub(super) modules: LoadedModules,
    pub(super) unwinder: Unwinder,
    pub(super) codes: Option<CodeCache>,
    pub(super) nn_modules: Option<ModuleProbe>,
    pub(super) progress: Option<ProgressProbe>,
    /// Torch's allocator of device memory; `None` until its library is loaded.
    pub(super) allocator: Option<AllocatorReadings>,
    pub(super) python: Python,
    environment: LiveEnvironment,
    maps: MapsReader,
    born_ns: u64,
    /// When the last search that found no started interpreter began.
    absent_ns: u64,
    /// When the last search began.
    searched_ns: u64,
    next_discovery_ns: u64,
    discovery_pause_ns: u64,
    next_refresh_ns: u64,
    refresh_pause_ns: u64,
}

impl ProcessImage {
    pub(super) fn new(pid: i32, store: Arc<ModuleStore>) -> Self {
        let now_ns = monotonic_ns();
        Self {
            pid,
            memory: ProcessMemory::new(pid),
            modules: LoadedModules::new(store),
            unwinder: Unwinder::new(),
            codes: None,
            nn_modules: None,
            progress: None,
            allocator: None,
            python: Python::Pending,
            environment: LiveEnvironment::default(),
            maps: MapsReader::new(pid),
            born_ns: now_ns,
            absent_ns: 0,
            searched_ns: 0,
            next_discovery_ns: 0,
            discovery_pause_ns: FIRST_DISCOVERY_NS,
            next_refresh_ns: 0,
            refresh_pause_ns: FIRST_REFRESH_NS,
        }
    }

    /// Reads the maps again if that is due. Returns whether executable memory changed.
    pub(super) fn refresh(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_refresh_ns {
            return false;
        }
        let Some(mappings) = self.maps.read() else {
            self.next_refresh_ns = now_ns + self.refresh_pause_ns;
            return false;
        };
        let changed = self
            .modules
            .refresh(&mappings, &Opener { pid: self.pid }, &self.memory);
        // After a change, such as during the import of torch, the next read follows soon.
        self.refresh_pause_ns = if changed {
            FIRST_REFRESH_NS
        } else {
            (self.refresh_pause_ns * 2).min(SLOWEST_REFRESH_NS)
        };
        self.next_refresh_ns = monotonic_ns() + self.refresh_pause_ns;
        changed
    }

    /// Whether a search for the interpreter is due.
    pub(super) fn discovery_due(&self, now_ns: u64) -> bool {
        matches!(self.python, Python::Pending) && now_ns >= self.next_discovery_ns
    }

    /// Whether an interpreter may still be starting.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.python, Python::Pending)
    }

    /// Searches for the interpreter. Returns whether its state changed.
    pub(super) fn discover(&mut self, now_ns: u64) -> bool {
        self.next_refresh_ns = 0;
        let changed = self.refresh(now_ns);
        self.next_discovery_ns = monotonic_ns() + self.discovery_pause_ns;
        self.discovery_pause_ns = (self.discovery_pause_ns * 3 / 2).min(SLOWEST_DISCOVERY_NS);
        if self.maps.is_blocked() && now_ns < self.born_ns + DISCOVERY_PATIENCE_NS {
            return false;
        }
        self.searched_ns = now_ns;
        let found = find_interpreter(&self.modules, &self.memory);
        if let Err(DiscoverError::NotPython | DiscoverError::NotYetInitialised) = found {
            self.absent_ns = now_ns;
        }
        match found {
            Ok(interpreter) => {
                self.set_interpreter(Arc::new(interpreter));
                true
            }
            // Lists may change while they are read.
            Err(DiscoverError::Invalid(_)) if now_ns < self.born_ns + 1_000_000_000 => false,
            // A process that was just forked or just started has not mapped everything yet.
            Err(DiscoverError::NotPython) if changed || now_ns < self.born_ns + 200_000_000 => {
                false
            }
            Err(DiscoverError::NotYetInitialised | DiscoverError::Unreadable(_))
                if now_ns < self.born_ns + DISCOVERY_PATIENCE_NS =>
            {
                false
            }
            Err(error) => {
                self.python = Python::None(error);
                true
            }
        }
    }

    /// Whether no interpreter had started at `seen_ns`; `None` if there was no search since.
    pub(super) fn was_absent(&self, seen_ns: u64) -> Option<bool> {
        let is_known = !self.is_starting() || self.searched_ns >= seen_ns;
        let is_none = matches!(&self.python, Python::None(error) if !matches!(error, DiscoverError::OlderVersion(_)));
        is_known.then_some(is_none || self.absent_ns >= seen_ns)
    }

    /// Sets the interpreter after discovery.
    pub(super) fn set_interpreter(&mut self, interpreter: Arc<Interpreter>) {
        self.codes = Some(CodeCache::new(&interpreter));
        self.nn_modules = Some(ModuleProbe::new(&interpreter));
        self.progress = Some(ProgressProbe::new(&interpreter));
        self.python = Python::Found(interpreter);
    }

    /// Searches for an interpreter again: a long-running program may load Python.
    pub(super) fn modules_changed(&mut self) {
        if matches!(
            self.python,
            Python::None(DiscoverError::NotPython | DiscoverError::NotYetInitialised)
        ) {
            let has_python = self
                .modules
                .modules()
                .any(|(module, _)| could_be_python(&module.info.path));
            if has_python {
                self.python = Python::Pending;
                self.next_discovery_ns = 0;
            }
        }
    }

    /// The environment, if it has changed since the last read: ranks may be set after exec.
    pub(super) fn changed_environment(&mut self) -> Option<Vec<(String, String)>> {
        match self.python {
            Python::Pending | Python::None(DiscoverError::NotPython) => None,
            Python::Found(_) | Python::None(_) => {
                self.environment.changed(&self.modules, &self.memory)
            }
        }
    }

    /// The path of the first loaded module for which `is_it` returns true.
    pub(super) fn module_path(&self, is_it: impl Fn(&Module) -> bool) -> Option<String> {
        self.modules
            .modules()
            .find(|(module, _)| is_it(module))
            .map(|(module, _)| module.info.path.clone())
    }
}

/// Searches the modules for an interpreter: modules named like Python, and the program itself
/// whatever its name.
fn find_interpreter(
    modules: &LoadedModules,
    memory: &dyn Memory,
) -> Result<Interpreter, DiscoverError> {
    let mut images = Vec::new();
    for (position, (module, bias)) in modules.modules().enumerate() {
        let Some(image) = module.image() else {
            continue;
        };
        // The program is mapped before any library.
        if position == 0 || could_be_python(&module.info.path) {
            images.push(PythonImage {
                path: &module.info.path,
                load_bias: bias,
                bytes: image.bytes(),
            });
        }
    }
    discover(&images, memory)
}

#[derive(Debug, Default)]
pub(super) struct TorchVersions {
    pub(super) torch: Option<String>,
    /// Version of CUDA that torch was built for.
    pub(super) cuda: Option<String>,
}

/// Versions from torch's `version.py`, in the package of the library at path `library`.
pub(super) fn torch_versions(pid: i32, library: &str) -> Option<TorchVersions> {
    const LONGEST: u64 = 64 << 10;
    let package = library.rsplit_once("/lib/")?.0;
    let file = ElfFile::open(pid, &format!("{package}/version.py")).ok()?;
    let text = file.copy(0..file.size().min(LONGEST))?;
    let text = String::from_utf8_lossy(&text);
    let quoted = |name: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name))?;
        line.split(['\'', '"']).nth(1).map(str::to_owned)
    };
    Some(TorchVersions {
        torch: quoted("__version__"),
        cuda: quoted("cuda: ").or_else(|| quoted("cuda = ")),
    })
}
