//! Options that files and the environment set: which is stronger, and what is wrong with them.

use crate::faults::{TORCHSPY, assert_error, output_of};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::faults::Output;

/// Runs torchspy in a folder, with no settings but those that are given.
fn run_in(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(TORCHSPY);
    command.args(arguments).current_dir(folder);
    command.env("XDG_CONFIG_HOME", folder.join("own"));
    command.envs(variables.iter().copied());
    output_of(&mut command)
}

/// What `torchspy config` says that a command is.
fn line(folder: &Path, variables: &[(&str, &str)], command: &str) -> String {
    let output = run_in(folder, variables, &["config"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.stderr);
    let start = format!("  torchspy {command} ");
    let mut lines = output.stdout.lines();
    let line = lines.find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_default().to_owned()
}

#[test]
fn the_nearest_and_the_most_special_setting_counts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let inner = at("project/src");
    fs::create_dir_all(&inner).unwrap();
    fs::create_dir_all(inner.join("own/torchspy")).unwrap();
    assert_eq!(line(&inner, &[], "top"), "");
    let output = run_in(&inner, &[], &["config"]);
    assert!(
        output.stdout.starts_with("nothing is set\n"),
        "{}",
        output.stdout
    );

    fs::write(
        inner.join("own/torchspy/torchspy.toml"),
        "rate = 10\nmax_stopped = 1.5\n",
    )
    .unwrap();
    let project = "[project]\nname = \"x\"\n[tool.torchspy]\nrate = 20\n[tool.torchspy.record]\n\
                   native = false\nno-native = true\nregion = [\"a=x.py:f\", \"b=x.py:g\"]\n";
    fs::write(at("project/pyproject.toml"), project).unwrap();
    assert_eq!(
        line(&inner, &[], "record"),
        "--rate=20 --no-native --max-stopped=1.5 --region=a=x.py:f --region=b=x.py:g"
    );
    assert_eq!(line(&inner, &[], "top"), "--rate=20 --max-stopped=1.5");
    // One file of the project is read: the nearest, and of two in a folder torchspy's own.
    fs::write(at("project/torchspy.toml"), "[top]\nrate = 30\n").unwrap();
    assert_eq!(line(&inner, &[], "record"), "--rate=10 --max-stopped=1.5");
    let variables = [
        ("TORCHSPY_TOP_RATE", "50"),
        ("TORCHSPY_RATE", "40"),
        ("TORCHSPY_GIL", "1"),
    ];
    assert_eq!(
        line(&inner, &variables, "top"),
        "--rate=50 --gil --max-stopped=1.5"
    );
    assert_eq!(
        line(&inner, &variables, "record"),
        "--rate=40 --gil --max-stopped=1.5"
    );
    let one = run_in(&inner, &variables, &["config", "record"]).stdout;
    assert!(
        one.contains("rate = 40") && !one.contains("top.rate"),
        "{one}"
    );
    assert_error(
        &run_in(&inner, &[], &["config", "x"]),
        "there is no command x",
        &["--help"],
    );
    // Shown with where it is from.
    let shown = run_in(&inner, &variables, &["config"]).stdout;
    let row = format!(
        "  top.rate = 30      {}:2\n",
        at("project/torchspy.toml").display()
    );
    assert!(
        shown.contains(&row) && shown.contains("  rate = 40          TORCHSPY_RATE\n"),
        "{shown}"
    );

    fs::write(at("other.toml"), "rate = 60").unwrap();
    let other = at("other.toml");
    let only = ("TORCHSPY_CONFIG", other.to_str().unwrap());
    assert_eq!(line(&inner, &[only], "top"), "--rate=60");
    assert_eq!(line(&inner, &[("TORCHSPY_CONFIG", "")], "top"), "");
}

#[test]
fn the_command_line_is_stronger() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("torchspy.toml");
    // Neither goes with what is typed, and one is nothing without another option.
    let text = "[record]\nduration = \"1s\"\ntrigger-for = \"5s\"\nrate = 7\npid = 1\n";
    fs::write(&file, text).unwrap();
    let recorded = run_in(
        folder.path(),
        &[],
        &["record", "-o", "x.tspy", "--rate", "11", "--", "/bin/true"],
    );
    assert_eq!(recorded.status.code(), Some(0), "{}", recorded.stderr);
    let inspected = run_in(folder.path(), &[], &["inspect", "x.tspy"]);
    assert!(inspected.stdout.contains("11 Hz"), "{}", inspected.stdout);
    let typed = run_in(
        folder.path(),
        &[("TORCHSPY_RECORD_RATE", "13")],
        &["record", "-o", "y.tspy", "--", "/bin/true"],
    );
    assert_eq!(typed.status.code(), Some(0), "{}", typed.stderr);
    let inspected = run_in(folder.path(), &[], &["inspect", "y.tspy"]);
    assert!(inspected.stdout.contains("13 Hz"), "{}", inspected.stdout);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("torchspy.toml");
    let typed = ["record", "--", "/bin/true"];
    for (text, cause, hint) in [
        ("rate = ", "torchspy.toml:1: ", "the file is in TOML"),
        (
            "\nrat = 1",
            "torchspy.toml:2: no command has an option rat",
            "torchspy record --help",
        ),
        (
            "[record]\nrat = 1",
            "torchspy.toml:2: record has no option rat",
            "torchspy record --help",
        ),
        (
            "[recrod]\nrate = 1",
            "torchspy.toml:1: there is no command recrod",
            "[record]",
        ),
        (
            "rate = {a = 1}",
            "torchspy.toml:1: there is no command rate",
            "torchspy --help",
        ),
        (
            "record.rate = 1979-05-27",
            "rate cannot be a table, a date or an empty list",
            "a number",
        ),
        (
            "rate = \"fast\"",
            "torchspy.toml:1: rate cannot be fast",
            "--rate",
        ),
        ("gil = 3", "torchspy.toml:1: gil cannot be 3", "--gil"),
        // Checked where all options are.
        ("duration = \"soon\"", "--duration", "duration is set by "),
    ] {
        fs::write(&file, text).unwrap();
        let output = run_in(folder.path(), &[], &typed);
        assert_error(&output, cause, &[hint]);
        assert_eq!(output.status.code(), Some(2), "{text}: {}", output.stderr);
    }
    let missing = [("TORCHSPY_CONFIG", "missing.toml")];
    assert_error(
        &run_in(folder.path(), &missing, &typed),
        "cannot read missing.toml",
        &["leave the variable empty"],
    );
    // A broken file of others is theirs, and py-spy has no such files.
    fs::write(&file, "rate = ").unwrap();
    let dump = output_of(
        Command::new(TORCHSPY)
            .current_dir(&folder)
            .args(["install-py-spy", "."])
            .env("TORCHSPY_CONFIG", ""),
    );
    assert_eq!(dump.status.code(), Some(0), "{}", dump.stderr);
    let version = output_of(
        Command::new(folder.path().join("py-spy"))
            .current_dir(&folder)
            .arg("--version"),
    );
    assert_eq!(version.status.code(), Some(0), "{}", version.stderr);
    fs::remove_file(&file).unwrap();
    // Neither waits for the other end of a pipe.
    let pipe = folder.path().join("pyproject.toml");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir_all(folder.path().join("own/torchspy")).unwrap();
    let own = folder.path().join("own/torchspy/torchspy.toml");
    nix::unistd::mkfifo(&own, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(&file, b"\xff\xfe rate = 5").unwrap();
    let output = run_in(folder.path(), &[], &["config"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.stderr);
    for name in ["own/torchspy/torchspy.toml", "torchspy.toml"] {
        let path = folder.path().join(name);
        let warning = format!("warning: {} is not read: ", path.display());
        assert!(output.stderr.contains(&warning), "{}", output.stderr);
    }
    fs::remove_file(&file).unwrap();
    fs::remove_file(&pipe).unwrap();
    fs::write(folder.path().join("pyproject.toml"), "[project\n").unwrap();
    let output = run_in(folder.path(), &[], &["config"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.stderr);
}
