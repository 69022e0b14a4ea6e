//! Interpreters and tools that tests need and a machine may lack. What is missing is said once,
//! where it was looked for, as `skipped: …` on stderr: `scripts/test` counts these lines.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::print_stderr,
    reason = "each test binary uses its part"
)]

use std::path::PathBuf;
use std::process::Command;

/// The cache folder, as in `scripts/test`.
pub fn cache() -> PathBuf {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    folder("TORCHSPY_CACHE").unwrap_or_else(|| {
        let caches = folder("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache"));
        caches.join("torchspy")
    })
}

/// `found`, or nothing and its reason.
fn or_skip<T>(found: Option<T>, reason: &str) -> Option<T> {
    if found.is_none() {
        eprintln!("skipped: {reason}");
    }
    found
}

fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()))
}

/// A file below a folder whose name starts with `start`; of several the one whose folder sorts
/// last.
fn below(folder: PathBuf, start: &str, file: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    let files = named.map(|entry| entry.path().join(file));
    files.filter(|path| path.exists()).max()
}

/// The Python of an environment that scripts/torch-env made; of several the newest: the others are
/// of earlier lists of packages.
fn environment(kind: &str) -> Option<PathBuf> {
    let made = |folder: &PathBuf| folder.join(".complete").metadata().ok()?.modified().ok();
    let start = format!("{kind}-");
    let entries = std::fs::read_dir(cache()).ok()?.flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
    let folders = named.map(|entry| entry.path());
    let folder = folders
        .filter(|folder| made(folder).is_some())
        .max_by_key(made)?;
    Some(folder.join("bin/python"))
}

/// pyenv's interpreter of a version (`3.11`).
fn pyenv(version: &str) -> Option<PathBuf> {
    let program = if version.starts_with('2') {
        "bin/python2"
    } else {
        "bin/python3"
    };
    below(
        home().join(".pyenv/versions"),
        &format!("{version}."),
        program,
    )
}

/// An interpreter of pyenv, by its version.
pub fn python(version: &str) -> Option<String> {
    let found = pyenv(version).map(|path| path.to_string_lossy().into_owned());
    or_skip(found, &format!("no Python {version} here (pyenv)"))
}

/// Any interpreter that torchspy reads: pyenv's 3.11, else another of pyenv's, else the system's.
pub fn any_python() -> Option<String> {
    let system = || Some(PathBuf::from("/usr/bin/python3")).filter(|path| path.exists());
    let found = pyenv("3.11")
        .or_else(|| below(home().join(".pyenv/versions"), "3.1", "bin/python3"))
        .or_else(system);
    let found = found.map(|path| path.to_string_lossy().into_owned());
    or_skip(found, "no Python here")
}

/// An interpreter by its path, and the root that it runs under by chroot: `3.11` and so on, `3.13t`
/// for one without the GIL, or `debian` for the system's own.
pub fn rooted_python(name: &str) -> Option<(String, Option<PathBuf>)> {
    let found = match name {
        "debian" => Some(("/usr/bin/python3".to_owned(), None))
            .filter(|(path, _)| PathBuf::from(path).exists()),
        "3.14" | "3.15" => {
            let root = std::env::var_os("TORCHSPY_SID_ROOT");
            let root = root.map_or_else(|| cache().join("sid"), PathBuf::from);
            let path = format!("/usr/bin/python{name}");
            let runs = root.join(&path[1..]).exists() && nix::unistd::geteuid().is_root();
            runs.then_some((path, Some(root)))
        }
        _ => match name.strip_suffix('t') {
            Some(version) => below(
                cache(),
                &format!("free-threaded-{version}-"),
                &format!("python{name}"),
            ),
            None => pyenv(name),
        }
        .map(|path| (path.to_string_lossy().into_owned(), None)),
    };
    let maker = match name {
        "3.14" | "3.15" => "scripts/sid, as root",
        name if name.ends_with('t') => "scripts/free-threaded",
        _ => "pyenv",
    };
    or_skip(found, &format!("no Python {name} here ({maker})"))
}

/// The Python that has torch.
pub fn torch_python() -> Option<PathBuf> {
    let found = environment("torch");
    or_skip(found, "no torch environment (scripts/torch-env makes it)")
}

/// The Python that has torch, frameworks upon it, and Ray.
pub fn frameworks_python() -> Option<PathBuf> {
    let found = environment("frameworks");
    let reason = "no Ray (scripts/torch-env frameworks makes it)";
    or_skip(found, reason)
}

/// The Python that has torch, and Megatron Core upon it.
pub fn megatron_python() -> Option<PathBuf> {
    let found = environment("megatron");
    let reason = "no Megatron Core (scripts/torch-env megatron makes it)";
    or_skip(found, reason)
}

/// The Python that has ipykernel and gevent.
pub fn runtimes_python() -> Option<PathBuf> {
    let found = environment("runtimes");
    let reason = "no ipykernel and gevent (scripts/torch-env runtimes makes them)";
    or_skip(found, reason)
}

/// The Python that has DuckDB and pandas.
pub fn tables_python() -> Option<PathBuf> {
    let found = environment("tables");
    let reason = "no DuckDB and pandas (scripts/torch-env tables makes them)";
    or_skip(found, reason)
}

/// The Python that has Spark, where there is a Java to run it.
pub fn spark_python() -> Option<PathBuf> {
    let java = Command::new("java").arg("-version").output();
    let runs = java.is_ok_and(|output| output.status.success());
    let found = runs.then(|| environment("spark"));
    let reason = "no Spark, or no Java (scripts/torch-env spark makes the one)";
    or_skip(found.flatten(), reason)
}

/// The Python that has an S3 server.
pub fn objects_python() -> Option<PathBuf> {
    let found = environment("objects");
    let reason = "no S3 server (scripts/torch-env objects makes it)";
    or_skip(found, reason)
}

/// The Python that has the messages of OTLP.
pub fn otlp_python() -> Option<PathBuf> {
    let found = environment("otlp");
    let reason = "no messages of OTLP (scripts/torch-env otlp makes them)";
    or_skip(found, reason)
}

/// MLflow's own program.
pub fn mlflow() -> Option<PathBuf> {
    let found = below(cache(), "mlflow-", "bin/mlflow");
    or_skip(found, "no MLflow (scripts/torch-env mlflow makes it)")
}

/// itwinai's own program.
pub fn itwinai() -> Option<PathBuf> {
    let found = environment("itwinai").map(|python| python.with_file_name("itwinai"));
    or_skip(found, "no itwinai (scripts/torch-env itwinai makes it)")
}

/// Debian's Prometheus.
pub fn prometheus() -> Option<PathBuf> {
    let found = below(cache(), "prometheus-", "usr/bin/prometheus");
    or_skip(found, "no Prometheus (scripts/prometheus fetches it)")
}

/// Azurite's script, where there is a node to run it.
pub fn azurite() -> Option<PathBuf> {
    let node = Command::new("node").arg("--version").output();
    let runs = node.is_ok_and(|output| output.status.success());
    let script = "node_modules/.bin/azurite-blob";
    let found = runs.then(|| below(cache(), "azurite-", script));
    let reason = "no Azurite, or no node (scripts/azurite installs the one)";
    or_skip(found.flatten(), reason)
}

/// A program of a Debian package, where that is installed.
pub fn debian(name: &str, package: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin"].map(|folder| PathBuf::from(folder).join(name));
    let found = folders.into_iter().find(|path| path.exists());
    or_skip(found, &format!("no {name} (Debian's {package})"))
}

/// A profiler that torchspy is measured against.
pub fn peer(name: &str) -> Option<PathBuf> {
    let wanted = std::env::var_os("TORCHSPY_NO_PEERS").is_none();
    let found = wanted.then(|| below(cache(), "peers-", &format!("bin/{name}")));
    let reason = format!("no {name} (scripts/torch-env peers makes it)");
    or_skip(found.flatten(), &reason)
}
