//! What `record` leaves of a launched program's surroundings: status, streams, signals, files; and
//! where its outputs go.
// Tests may: clippy's exemption does not reach helper functions of integration tests.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn record(folder: &TempDir, options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_torchspy"));
    command
        .arg("record")
        .args(options)
        .arg("--")
        .args(program)
        .current_dir(folder.path())
        .stdin(Stdio::null());
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn stderr(output: &Output) -> String {
    text(&output.stderr)
}

#[test]
fn the_programs_status_is_torchspys() {
    for (script, status) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -34 $$", 162),
    ] {
        let folder = folder();
        let output = record(&folder, &[], &["sh", "-c", script])
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(status),
            "{script}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn stdin_and_stdout_are_the_programs() {
    let folder = folder();
    let data: Vec<u8> = (0..1_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut child = record(&folder, &[], &["cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(
        output.stdout == data,
        "{} bytes came back",
        output.stdout.len()
    );
}

/// What the program sees of itself, with and without torchspy.
#[test]
fn signals_and_files_are_as_without_torchspy() {
    let probe = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd; umask; pwd";
    let folder = folder();
    let through = record(&folder, &[], &["sh", "-c", probe]).output().unwrap();
    let direct = Command::new("sh")
        .args(["-c", probe])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(text(&direct.stdout).contains("SigBlk"), "the probe works");
    assert_eq!(text(&through.stdout), text(&direct.stdout));
}

#[test]
fn the_program_is_in_torchspys_process_group() {
    let folder = folder();
    let child = record(&folder, &[], &["sh", "-c", "cut -d' ' -f5 /proc/self/stat"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let group = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), group.to_string());
}

#[test]
fn a_program_that_is_not_there_leaves_nothing_behind() {
    let folder = folder();
    for (program, status, hint) in [
        ("no-such-program-here", 127, "PATH"),
        ("./train.py", 127, "python ./train.py"),
        ("/tmp", 126, "executable"),
    ] {
        let output = record(&folder, &[], &[program]).output().unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(
            error.starts_with(&format!("error: cannot run {program}: ")),
            "{error}"
        );
        assert!(
            error.lines().last().unwrap().starts_with("hint: ") && error.contains(hint),
            "{error}"
        );
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }
}

#[test]
fn outputs_are_opened_before_anything_runs() {
    let folder = folder();
    for output in ["/proc/no/such/folder/x.svg", "/proc/x.tspy", "."] {
        let output = record(
            &folder,
            &["-o", "good.folded", "-o", output],
            &["touch", "ran"],
        )
        .output()
        .unwrap();
        assert!(!output.status.success());
        let error = stderr(&output);
        assert!(
            error.starts_with("error: ") && error.contains("\nhint: "),
            "{error}"
        );
        assert_eq!(
            names(folder.path()),
            Vec::<String>::new(),
            "the program did not run, and nothing is left"
        );
    }
}

#[test]
fn default_names_tell_script_host_pid_and_time() {
    let folder = folder();
    fs::write(
        folder.path().join("train.py"),
        "import os; print(os.getpid())",
    )
    .unwrap();
    let output = record(&folder, &[], &["python3", "train.py"])
        .output()
        .unwrap();
    let pid = text(&output.stdout).trim().to_owned();
    let names: Vec<String> = names(folder.path())
        .into_iter()
        .filter(|name| name != "train.py")
        .collect();
    let recording = names.iter().find(|name| name.ends_with(".tspy")).unwrap();
    let pattern = format!(r"^torchspy-train-[A-Za-z0-9._-]+-{pid}-\d{{8}}T\d{{6}}Z\.tspy$");
    assert!(
        regex::Regex::new(&pattern).unwrap().is_match(recording),
        "{recording}"
    );
    let mode = fs::metadata(folder.path().join(recording))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        stderr(&output).contains(&format!("wrote {recording}\n")),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_rank_is_part_of_the_name() {
    let folder = folder();
    record(&folder, &[], &["true"])
        .env("RANK", "7")
        .env("SLURM_PROCID", "9")
        .output()
        .unwrap();
    let names = names(folder.path());
    assert!(
        !names.is_empty() && names.iter().all(|name| name.contains("-rank7-")),
        "{names:?}"
    );
}

#[test]
fn named_outputs_are_the_only_ones_and_replace_others_only_by_force() {
    let folder = folder();
    let path = folder.path().join("run.tspy");
    fs::write(&path, "something older").unwrap();
    let refused = record(&folder, &["-o", "run.tspy"], &["touch", "ran"])
        .output()
        .unwrap();
    let error = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(
        error.contains("error: run.tspy is there already\nhint: ") && error.contains("--force"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "something older");
    assert_eq!(
        names(folder.path()),
        ["run.tspy"],
        "the program did not run"
    );
    let output = record(&folder, &["--force", "-o", "run.tspy"], &["true"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(names(folder.path()), ["run.tspy"]);
    let content = fs::read(&path).unwrap();
    assert!(!content.is_empty() && !content.starts_with(b"something older"));
}

/// Neither what a link leads to is written, nor its mode changed; and a killed torchspy has left
/// its recording, by its name.
#[test]
fn a_planted_link_is_not_followed_and_a_replaced_recording_survives_a_kill() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let folder = folder();
    let (victim, path) = (folder.path().join("victim"), folder.path().join("run.tspy"));
    fs::write(&victim, "kept").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).unwrap();
    for name in ["run.tspy", "run.svg"] {
        symlink(&victim, folder.path().join(name)).unwrap();
    }
    for name in ["run.tspy", "run.svg"] {
        let refused = record(&folder, &["-o", name], &["touch", "ran"])
            .output()
            .unwrap();
        let error = stderr(&refused);
        assert!(error.contains("is a symbolic link"), "{error}");
        assert!(error.contains("\nhint: "), "{error}");
    }
    let options = ["--force", "-o", "run.tspy", "-o", "run.svg"];
    // It outlives torchspy, and ends with its input.
    let mut child = record(&folder, &options, &["sh", "-c", "echo ready; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    // The older file is replaced when it is known that the program could be started.
    crate::faults::wait_until("the recording has its name", || {
        path.symlink_metadata().unwrap().is_file()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let data = victim.symlink_metadata().unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    assert_eq!(data.mode() & 0o777, 0o644);
    let data = path.symlink_metadata().unwrap();
    assert!(data.is_file() && data.len() > 0);
    assert_eq!(data.mode() & 0o777, 0o600);
}

#[test]
fn a_program_that_fails_is_said_to_with_its_status() {
    let folder = folder();
    for (script, said) in [
        ("exit 3", "the program ended with status 3"),
        ("kill -9 $$", "the program was ended by SIGKILL"),
    ] {
        let output = record(
            &folder,
            &["--force", "-o", "run.tspy"],
            &["sh", "-c", script],
        )
        .output()
        .unwrap();
        let error = stderr(&output);
        assert!(error.lines().any(|line| line == said), "{error}");
    }
    let output = record(&folder, &["--force", "-o", "run.tspy"], &["true"])
        .output()
        .unwrap();
    let error = stderr(&output);
    let says_so =
        |line: &str| line.starts_with("the program ended") || line.starts_with("the program was");
    assert!(!error.lines().any(says_so), "{error}");
}

/// Its system calls and its /proc would speak of different processes.
#[test]
fn a_proc_of_another_pid_namespace_is_said_to_be_one() {
    let folder = folder();
    let unshare = |arguments: &[&str]| {
        Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child"])
            .args(arguments)
            .current_dir(folder.path())
            .output()
    };
    if !unshare(&["true"]).is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no pid namespace to be had");
    }
    let own = std::process::id().to_string();
    let torchspy = env!("CARGO_BIN_EXE_torchspy");
    let error = stderr(&unshare(&[torchspy, "record", "--pid", &own]).unwrap());
    assert!(
        error.contains("/proc shows the processes of another pid namespace"),
        "{error}"
    );
    assert!(error.contains("hint: mount the /proc"), "{error}");
    assert!(!error.contains("kernel"), "{error}");
}

#[test]
fn secrets_of_the_command_line_are_kept_only_where_that_is_asked_for() {
    let folder = folder();
    let program = ["sh", "-c", "exit 0", "train", "--db-pass", "hunter2hunter2"];
    for (options, is_kept) in [(&[][..], false), (&["--no-redact"], true)] {
        let options = [options, &["--force", "-o", "run.tspy", "-o", "run.json"]].concat();
        record(&folder, &options, &program).output().unwrap();
        let text = fs::read_to_string(folder.path().join("run.json")).unwrap();
        assert_eq!(text.contains("hunter2hunter2"), is_kept, "{text}");
        assert!(text.ends_with("}\n") && !text.ends_with("\n\n"), "{text}");
    }
}

#[test]
fn secrets_of_the_command_line_are_not_kept() {
    let folder = folder();
    let program = [
        "sh",
        "-c",
        "exit 0",
        "train",
        "--api-key",
        "hunter2hunter2",
        "--lr",
        "0.125",
    ];
    record(&folder, &["-o", "run.tspy"], &program)
        .output()
        .unwrap();
    let content = fs::read(folder.path().join("run.tspy")).unwrap();
    assert!(
        !content
            .windows(14)
            .any(|window| window == b"hunter2hunter2")
    );
}

#[test]
fn a_recording_can_end_before_its_program() {
    use std::io::{BufRead, BufReader};
    let folder = folder();
    let mut child = record(
        &folder,
        &["--duration", "50ms", "-o", "run.tspy"],
        &["sh", "-c", "read answer; exit $answer"],
    )
    .stdin(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(lines.any(|line| line.contains("the program goes on")));
    assert!(lines.any(|line| line == "wrote run.tspy"));
    writeln!(child.stdin.take().unwrap(), "9").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_closed_stderr_costs_nothing_but_the_messages() {
    let folder = folder();
    let script = format!(
        "exec 2>&-; {} record -o run.tspy -- sh -c 'exit 6'",
        env!("CARGO_BIN_EXE_torchspy")
    );
    let status = Command::new("sh")
        .args(["-c", &script])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(6));
}

#[test]
fn as_first_process_it_reaps_orphans() {
    // An orphan writes its pid and ends; the program waits until its zombie is gone, and gives up
    // after a minute at the least.
    let program = "(sh -c 'echo $$ > pid.new; mv pid.new pid' &)\n\
        until [ -e pid ]; do sleep 0.01; done\n\
        for i in $(seq 6000); do [ -e /proc/$(cat pid) ] || exit 5; sleep 0.01; done\n\
        exit 1";
    let folder = folder();
    let can_unshare = Command::new("unshare")
        .args(["-pf", "--mount-proc", "true"])
        .output();
    match can_unshare {
        Ok(output) if output.status.success() => {}
        Ok(output) => return eprintln!("skipped: no pid namespace to be had: {}", stderr(&output)),
        Err(error) => return eprintln!("skipped: unshare: {error}"),
    }
    let output = Command::new("unshare")
        .args([
            "-pf",
            "--mount-proc",
            env!("CARGO_BIN_EXE_torchspy"),
            "record",
            "-o",
            "run.tspy",
            "--",
            "sh",
            "-c",
            program,
        ])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
}

/// A process that ignores SIGCHLD gets no status of its children; torchspy does, and starts the
/// program with the disposition that it inherited.
#[test]
fn who_ignores_its_children_gets_the_status_too() {
    let folder = folder();
    // Shells ignore it only until they start another program.
    let command = [
        "--ignore-signal=CHLD",
        env!("CARGO_BIN_EXE_torchspy"),
        "record",
        "--",
        "awk",
        "/SigIgn/ { print $2 } END { exit 3 }",
        "/proc/self/status",
    ];
    let output = Command::new("env")
        .args(command)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    // SIGCHLD is 17.
    let ignored = u64::from_str_radix(text(&output.stdout).trim(), 16).unwrap();
    assert_ne!(ignored & 1 << 16, 0, "{ignored:x}");
}
