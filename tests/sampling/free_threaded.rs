//! A free-threaded Python is refused before anything is done to it. There is none to be installed
//! here: one with the global lock takes its place, whose library says of itself that it has none
//! (`_Py_DebugOffsets.free_threaded`).

use crate::faults::{TORCHSPY, Target, assert_error, output_of, python, run};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

struct Marked {
    folder: TempDir,
    home: String,
}

impl Marked {
    /// A copy of Python 3.13 whose library is marked.
    fn new() -> Option<Self> {
        let python = python("3.13")?;
        let home = Path::new(&python).parent()?.parent()?.to_owned();
        let library = "libpython3.13.so.1.0";
        let Ok(mut bytes) = std::fs::read(home.join("lib").join(library)) else {
            eprintln!("skipped: this Python 3.13 has no library of its own");
            return None;
        };
        let at = bytes
            .windows(8)
            .enumerate()
            .find(|(at, found)| *found == b"xdebugpy" && bytes[at + 11] == 3)?
            .0;
        bytes[at + 16] = 1;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(library), bytes).unwrap();
        for name in ["python3.13", "python3.13t"] {
            std::fs::copy(home.join("bin/python3.13"), folder.path().join(name)).unwrap();
        }
        Some(Self {
            folder,
            home: home.to_string_lossy().into_owned(),
        })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn in_its_place(&self, mut command: Command) -> Command {
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("PYTHONHOME", &self.home)
            .current_dir(self.folder.path());
        command
    }
}

#[test]
fn a_process_is_refused_with_the_reason() {
    let Some(marked) = Marked::new() else { return };
    let mut command = marked.in_its_place(Command::new(marked.path("python3.13")));
    command.args(["-c", "print('ready', flush=True)\nwhile True: pass"]);
    let mut target = Target::spawn(&mut command);
    target.expect("ready");
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder
        .path()
        .join("run.tspy")
        .to_string_lossy()
        .into_owned();
    for words in [
        vec!["record", "--pid", &pid, "-o", &path],
        vec!["dump", "--pid", &pid],
    ] {
        assert_error(&run(&words), "free-threaded", &["global lock"]);
    }
    assert!(!Path::new(&path).exists());
    let doctor = run(&["doctor", "--pid", &pid]);
    assert!(!doctor.status.success());
    assert!(
        doctor
            .stdout
            .lines()
            .any(|line| line.starts_with("no ") && line.contains("free-threaded")),
        "{}",
        doctor.stdout
    );
}

#[test]
fn a_program_is_refused_before_it_runs() {
    let Some(marked) = Marked::new() else { return };
    let script = marked.path("script");
    std::fs::write(
        &script,
        format!("#!{}\nopen('ran', 'w')\n", marked.path("python3.13t")),
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let programs = [
        vec![
            marked.path("python3.13t"),
            "-c".to_owned(),
            "open('ran', 'w')".to_owned(),
        ],
        vec![script],
    ];
    for program in programs {
        let mut command = marked.in_its_place(Command::new(TORCHSPY));
        command
            .args(["record", "-o", "run.tspy", "--"])
            .args(&program);
        assert_error(&output_of(&mut command), "free-threaded", &["global lock"]);
        assert!(!Path::new(&marked.path("ran")).exists());
        assert!(!Path::new(&marked.path("run.tspy")).exists());
    }
}

#[test]
fn one_that_a_shell_starts_runs_to_its_end_and_the_failure_is_told() {
    let Some(marked) = Marked::new() else { return };
    // Long enough to be looked at by a recorder that waits for a CPU.
    let line = "./python3.13 -c 'import time; time.sleep(5); open(\"ran\", \"w\")'";
    let mut command = marked.in_its_place(Command::new(TORCHSPY));
    command.args(["record", "-o", "run.tspy", "--", "sh", "-c", line]);
    let output = output_of(&mut command);
    assert!(Path::new(&marked.path("ran")).exists(), "{}", output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("free-threaded"), "{}", output.stderr);
}
