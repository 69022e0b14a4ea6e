//! What torchspy says of itself: help, errors, doctor.
// Tests may: clippy's exemption does not reach helper functions of integration tests.

use std::process::{Command, Output, Stdio};

fn torchspy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torchspy"))
        .args(arguments)
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn help() {
    let output = torchspy(&["--help"]);
    assert!(output.status.success() && output.stderr.is_empty());
    insta::assert_snapshot!("help", text(&output.stdout));
    for command in [
        "record", "report", "convert", "snapshot", "trigger", "view", "diff", "scaling", "inspect",
        "doctor", "man",
    ] {
        let output = torchspy(&[command, "--help"]);
        assert!(output.status.success());
        insta::assert_snapshot!(format!("help_{command}"), text(&output.stdout));
    }
}

#[test]
fn the_version_is_data() {
    let output = torchspy(&["--version"]);
    assert_eq!(
        text(&output.stdout),
        format!("torchspy {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn every_usage_error_has_a_cause_a_hint_and_status_2() {
    for arguments in [
        &["record"][..],
        &["record", "python", "train.py"],
        &["record", "--pid", "0"],
        &["record", "--pid", "1", "--", "true"],
        &["record", "--rate", "0", "--", "true"],
        &["record", "--rate"],
        &["record", "--rate", "-5", "--", "true"],
        &["record", "-d", "-1", "--", "true"],
        &["record", "-o", "flame.png", "--", "true"],
        &["recrod", "--", "true"],
        &["convert", "x.tspy"],
        &["convert", "x.tspy", "-o", "-"],
        &["completions", "tcl"],
        &["report", "--top", "many", "x"],
        &["report", "x.tspy", "--mlflow", "sqlite:///mlflow.db"],
        &["scaling"],
        &["scaling", "a", "a"],
        &["scaling", "a", "-o", "a.svg"],
        &["scaling", "a", "-o", "a.png"],
        &["scaling", "a", "--csv", "ranks"],
        &["scaling", "a", "--run-to-run", "-1"],
    ] {
        let output = torchspy(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.starts_with("error: "), "{arguments:?}: {error}");
        assert!(
            error.lines().any(|line| line.starts_with("hint: ")),
            "{arguments:?}: {error}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_command_without_dashes_is_told_how() {
    let error = text(&torchspy(&["record", "python", "train.py"]).stderr);
    assert!(
        error.contains("torchspy record -- python train.py"),
        "{error}"
    );
}

/// What py-spy's users type and torchspy does not take is answered with what to type.
#[test]
fn hands_that_know_py_spy_are_told_the_line_to_type() {
    for (typed, said) in [
        (&["top", "18401"][..], "torchspy top --pid 18401"),
        (&["dump", "18401"], "torchspy dump --pid 18401"),
        (&["record", "18401"], "torchspy record --pid 18401"),
        (
            &["record", "-o", "a.svg", "python", "train.py", "--lr", "1"],
            "torchspy record -o a.svg -- python train.py --lr 1",
        ),
        (
            &["top", "python", "-c", "print(1)"],
            "torchspy top -- python -c 'print(1)'",
        ),
        (&["--pid", "18401"], "torchspy record --pid 18401"),
        (
            &["record", "--threads", "^pt_", "--pid", "1"],
            "torchspy record --thread-name '^pt_' --pid 1",
        ),
        (&["dump", "--core", "core.1"], "py-spy dump --core"),
        (&["dump", "-p", "1", "--full-filenames"], "--json"),
        (&["top", "-p", "1", "--delay", "2"], "twice a second"),
        (&["top", "-p", "1", "-f", "raw"], "torchspy record"),
        (
            &["report", "run.tspy", "-o", "run.csv"],
            "torchspy convert run.tspy -o",
        ),
        (
            &["convert", "run.tspy", "--csv", "lines"],
            "torchspy report run.tspy --csv",
        ),
        (&["record", "--subproceses", "-p", "1"], "'--subprocesses'"),
    ] {
        let output = torchspy(typed);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{typed:?}: {error}");
        let hints: Vec<&str> = error
            .lines()
            .skip_while(|line| !line.starts_with("hint: "))
            .collect();
        assert!(hints.join("\n").contains(said), "{typed:?}: {error}");
        assert!(!error.contains("-- -"), "{typed:?}: {error}");
    }
}

#[test]
fn scaling_says_what_it_writes() {
    for name in ["a.png", "a.svg", "a.tspy"] {
        let error = text(&torchspy(&["scaling", "a", "-o", name]).stderr);
        let said = format!("error: {name}: a comparison of sizes has no such form\n");
        assert!(error.starts_with(&said), "{error}");
        let hint = "the format goes by the extension: .html .json .txt; --csv prints a table";
        assert!(
            error.contains(hint) && !error.contains("--format"),
            "{error}"
        );
    }
}

#[test]
fn options_of_py_spy_are_taken() {
    // Whatever else there is to say of this process, nothing is said of the options.
    for typed in [
        "record -s -n -g -i --threads -F --nolineno --full-filenames --nonblocking -f speedscope -d unlimited -r 50",
        "record --subprocesses -t --function --idle --gil --native -d 10 -f flamegraph",
        "dump -s -j -l -n --nonblocking",
        "dump -ll --subprocesses --json --native",
        "top -s -g -i -n -r 20 --nonblocking",
        "record -f raw",
    ] {
        for pid in ["2147483647", "0x7fffffff"] {
            let words: Vec<&str> = typed.split(' ').chain(["-p", pid]).collect();
            let output = torchspy(&words);
            let error = text(&output.stderr);
            let known = ["there is no process 2147483647", "top needs a terminal"];
            assert!(
                known.iter().any(|known| error.contains(known)),
                "{typed}: {error}"
            );
        }
    }
}

#[test]
fn a_recording_that_is_not_there() {
    for arguments in [
        &["report", "/nonexistent/\x1b[2J.tspy"][..],
        &[
            "convert",
            "/nonexistent/\x1b[2J.tspy",
            "-o",
            "/tmp/never.svg",
        ],
        &["inspect", "/nonexistent/\x1b[2J.tspy"],
        &["scaling", "/nonexistent/\x1b[2J"],
    ] {
        let output = torchspy(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.starts_with("error: cannot open /nonexistent/"),
            "{error}"
        );
        assert!(error.contains("\nhint: "), "{error}");
        assert!(
            !error.contains('\x1b'),
            "control bytes never reach the terminal"
        );
    }
    assert!(!std::path::Path::new("/tmp/never.svg").exists());
}

#[test]
fn a_process_that_is_not_there() {
    for command in ["record", "doctor"] {
        let output = torchspy(&[command, "--pid", "2147483647"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.starts_with("error: there is no process 2147483647\nhint: "),
            "{error}"
        );
    }
}

#[test]
fn doctor_looks_at_this_machine_and_at_a_process() {
    let own = std::process::id().to_string();
    let output = torchspy(&["doctor", "--pid", &own]);
    let report = text(&output.stdout);
    let verdict_of = |name: &str| {
        let line = report
            .lines()
            .find(|line| line.split_whitespace().nth(1) == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in {report}"))
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    let names = [
        "kernel",
        "ptrace_scope",
        "ptrace",
        "process_vm_readv",
        "schedstat",
        "user",
        "memory",
        "python",
    ];
    let verdicts = names.map(verdict_of);
    assert!(
        verdicts
            .iter()
            .all(|verdict| ["ok", "limited", "no"].contains(&verdict.as_str())),
        "{report}"
    );
    // The process asked about is this test, which is no Python.
    assert_eq!(verdicts[7], "limited", "{report}");
    assert_eq!(
        output.status.success(),
        !report.lines().any(|line| line.starts_with("no ")),
        "{report}"
    );
}

#[test]
fn completions_are_scripts() {
    for (shell, mark) in [
        ("bash", "_torchspy()"),
        ("zsh", "#compdef torchspy"),
        ("fish", "complete -c torchspy"),
    ] {
        assert!(
            text(&torchspy(&["completions", shell]).stdout).contains(mark),
            "{shell}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in ["completions bash", "doctor", "--help"] {
        let script = format!(
            "{} {arguments} 2>&1 1>&3 | cat >&2",
            env!("CARGO_BIN_EXE_torchspy")
        );
        // Descriptor 3 is a pipe whose reading end is closed before torchspy starts.
        let output = Command::new("python3")
            .args(["-c", "import os, subprocess, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 3)\nsubprocess.run(['sh', '-c', sys.argv[1]], pass_fds=[3])", &script])
            .output()
            .unwrap();
        assert_eq!(text(&output.stderr), "", "{arguments}");
    }
}
