//! Paths: those of packages, Python's own library and the system keep their ends and lose the
//! folders above; others become a hash of the folder and a hash of the name.

use super::Confidential;
use super::public::{MEMORY, is_program, is_python};
use crate::model::text::{file_name, notebook_cell};
use regex::Regex;
use std::sync::OnceLock;

/// Stands for the folders above.
const ABOVE: &str = "…";
/// Folders of the system's own libraries and programs.
const SYSTEM: &[&str] = &[
    "/bin/",
    "/lib/",
    "/lib64/",
    "/sbin/",
    "/usr/bin/",
    "/usr/lib/",
    "/usr/lib64/",
    "/usr/libexec/",
    "/usr/local/cuda",
    "/opt/nvidia/",
    "/opt/rocm",
];
/// Parts of the folders in which package managers make environments of their own.
const MANAGERS: &[&str] = &["conda", "mamba", "miniforge", "/envs/", "/.pixi/"];
/// Libraries of torch and CPython that keep their names wherever they lie: a build from source.
const LIBRARIES: &[&str] = &[
    "libc10.so",
    "libc10_cuda.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
];
/// Endings of names that say what a file is.
const ENDINGS: &[&str] = &[".py", ".ipynb", ".so", ".tspy"];
/// Modules of CPython that are frozen into it (Lib, Python/frozen.c of 3.15), by their beginning.
const FROZEN: &[&str] = &[
    "_collections_abc",
    "_sitebuiltins",
    "abc",
    "codecs",
    "genericpath",
    "getpath",
    "importlib",
    "io",
    "ntpath",
    "os",
    "posixpath",
    "runpy",
    "site",
    "stat",
    "zipimport",
];

/// The folder of an environment whose interpreter this is: `/opt/conda/envs/train` of
/// `/opt/conda/envs/train/bin/python3.12`. `None` for the system's.
pub(super) fn environment(exe: &str) -> Option<String> {
    let folder = exe.strip_suffix(file_name(exe))?.strip_suffix("/bin/")?;
    let is_own = !matches!(folder, "" | "/usr" | "/usr/local");
    (is_own && is_program(file_name(exe))).then(|| folder.to_owned())
}

fn library_folder() -> Option<&'static Regex> {
    static FOLDER: OnceLock<Option<Regex>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| Regex::new(r"/lib(64)?/python3\.[0-9]+t?/").ok());
    folder.as_ref()
}

/// A path from a package's or Python's own library's folder on.
fn installed(path: &str) -> Option<&str> {
    let packages = ["/site-packages/", "/dist-packages/"];
    if let Some(at) = packages
        .iter()
        .filter_map(|folder| path.rfind(folder))
        .max()
    {
        return path.get(at..);
    }
    let found = library_folder()?.find_iter(path).last()?;
    path.get(found.start()..)
}

impl Confidential {
    /// A path of either kind, and whether it is public.
    pub(super) fn path(&mut self, path: &str) -> (String, bool) {
        match path.contains(".so") {
            true => self.native_path(path),
            false => self.python_path(path),
        }
    }

    pub(super) fn python_path(&mut self, path: &str) -> (String, bool) {
        if let Some(end) = installed(path) {
            return (format!("{ABOVE}{end}"), true);
        }
        if let Some(cell) = self.cell(path) {
            return (cell, false);
        }
        if let Some(inside) = path
            .strip_prefix("<frozen ")
            .and_then(|rest| rest.strip_suffix('>'))
            && let Some(root) = inside.split('.').next()
            && FROZEN.contains(&root)
        {
            return (path.to_owned(), true);
        }
        if matches!(path, "" | "<string>" | "<stdin>") {
            return (path.to_owned(), false);
        }
        (self.own(path), false)
    }

    pub(super) fn native_path(&mut self, path: &str) -> (String, bool) {
        if let Some(end) = installed(path) {
            return (format!("{ABOVE}{end}"), true);
        }
        let name = file_name(path);
        let is_system = SYSTEM.iter().any(|folder| path.starts_with(folder));
        if path.is_empty() || is_system || MEMORY.contains(&path) {
            return (path.to_owned(), true);
        }
        // An environment in the folder of a project has libraries of the project's own, too.
        let shared = |folder: &&String| MANAGERS.iter().any(|name| folder.contains(name));
        let inside = self.environments.iter().filter(shared).find_map(|folder| {
            let end = path.strip_prefix(folder)?;
            end.starts_with("/lib/").then_some(end)
        });
        if let Some(end) = inside {
            return (format!("{ABOVE}{end}"), true);
        }
        let library = name
            .strip_prefix("lib")
            .and_then(|name| name.split_once(".so"));
        let is_interpreter = is_python(name) || library.is_some_and(|(stem, _)| is_python(stem));
        if is_interpreter || LIBRARIES.contains(&name) {
            return (format!("{ABOVE}/{name}"), true);
        }
        (self.own(path), false)
    }

    /// The path of a program, or a title that a process gave itself.
    pub(super) fn program(&mut self, path: &str) -> String {
        let name = file_name(path);
        let is_system = SYSTEM.iter().any(|folder| path.starts_with(folder));
        match (is_program(name), path.len() == name.len()) {
            (true, true) => name.to_owned(),
            (true, false) if is_system => path.to_owned(),
            (true, false) => format!("{ABOVE}/{name}"),
            (false, true) => self.thread("program", name),
            (false, false) => self.own(path),
        }
    }

    /// A notebook's cell keeps its number. The hash of its text, which is its name, is hashed
    /// again.
    fn cell(&mut self, path: &str) -> Option<String> {
        notebook_cell(path)?;
        if let Some(rest) = path.strip_prefix("<ipython-input-") {
            let (number, hash) = rest.split_once('-')?;
            return Some(format!("<ipython-input-{number}-{}>", self.hash("", hash)));
        }
        let (folder, name) = path.rsplit_once('/')?;
        let (number, hash) = match name.split_once("]-") {
            Some((number, hash)) => (format!("{number}]-"), hash),
            None => (String::new(), name),
        };
        let hash = u32::from_str_radix(&self.hash("", hash), 16).ok()?;
        Some(format!("{}/{number}{hash}.py", file_name(folder)))
    }

    /// `dir_5e1f00/file_7b2e10.py`. The folder is hashed as one: its parts, such as a home folder,
    /// cannot be guessed one by one.
    pub(super) fn own(&mut self, path: &str) -> String {
        let name = file_name(path);
        let (stem, ending) = ending(name);
        let file = self.hash("file", stem);
        match path
            .strip_suffix(name)
            .map(|folder| folder.trim_end_matches('/'))
        {
            None | Some("") => format!("{file}{ending}"),
            Some(folder) => format!("{}/{file}{ending}", self.hash("dir", folder)),
        }
    }
}

/// The name without its ending, and the ending: `.so` of `a.cpython-312-x86_64-linux-gnu.so`.
fn ending(name: &str) -> (&str, &'static str) {
    let known = ENDINGS.iter().find(|ending| name.ends_with(*ending));
    match known {
        Some(ending) => (name.strip_suffix(ending).unwrap_or(name), ending),
        None => (name, ""),
    }
}
