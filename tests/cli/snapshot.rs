//! Pages of recordings that are still being written: `snapshot`, and `record --snapshot`.

use crate::faults::{
    How, Output, Recorder, TORCHSPY, Target, any_python, assert_error, output_of, program, run,
    wait_until,
};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// tests/programs/options.py with a child process, ready; `None`, with a word on stderr, without a
/// Python.
fn target() -> Option<Target> {
    let python = any_python()?;
    Some(Target::start(&[
        &*python,
        &*program("options.py"),
        "--child",
    ]))
}

/// The head of a page's data.
pub(crate) fn head_of_page(page: &str) -> Value {
    use base64::Engine;
    use std::io::Read;
    let longest = page
        .split(['<', '>', '"'])
        .max_by_key(|part| match part.starts_with("H4sI") {
            true => part.len(),
            false => 0,
        });
    let packed = base64::prelude::BASE64_STANDARD
        .decode(longest.unwrap().trim())
        .unwrap();
    let mut data = Vec::new();
    flate2::read::GzDecoder::new(&*packed)
        .read_to_end(&mut data)
        .unwrap();
    let length = u32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
    serde_json::from_slice(&data[4..4 + length]).unwrap()
}

fn page_at(path: &Path) -> Value {
    head_of_page(&fs::read_to_string(path).unwrap())
}

/// What a page with data has, and one that only holds its place has not.
const DATA: &str = "H4sI";

/// Whether a page says at its top that the recording goes on.
fn is_so_far(head: &Value) -> bool {
    head["verdict"][0][0] == "SO FAR"
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_snapshot_has_what_is_complete_and_says_that_the_rest_is_to_come() {
    let Some(target) = target() else { return };
    let recorder = Recorder::attach(target.pid(), How::default());
    recorder.wait_for_segment();
    let file = recorder.path();
    let file = file.to_str().unwrap();
    let page = recorder.folder.path().join("run.snapshot.html");
    let made = run(&["snapshot", file]);
    assert!(made.status.success(), "{}", made.stderr);
    assert!(
        made.stderr.contains("run.tspy is still being recorded"),
        "{}",
        made.stderr
    );
    assert!(!made.stderr.contains("warning"), "{}", made.stderr);
    let head = page_at(&page);
    assert!(is_so_far(&head), "{head}");
    assert!(head["length_us"].as_u64().unwrap() > 500_000, "{head}");
    assert_error(&run(&["snapshot", file]), "is there already", &["--force"]);
    recorder.wait_for_segment();
    assert!(run(&["snapshot", file, "--force"]).status.success());
    let later = page_at(&page);
    assert!(later["length_us"].as_u64() > head["length_us"].as_u64());
    // By the pids of who records, who is recorded, and a child that is sampled with it.
    let pids = [
        recorder.pid(),
        target.pid(),
        target.ready[1].parse().unwrap(),
    ];
    for pid in pids {
        let made = run(&["snapshot", &pid.to_string(), "-o", "-", "-f", "json"]);
        let whose = format!(
            "{file} (process {}, recorded by process {}) is still being recorded",
            target.pid(),
            recorder.pid()
        );
        assert!(made.stderr.contains(&whose), "{}", made.stderr);
        assert!(!made.stderr.contains("/proc/"), "{}", made.stderr);
        let report = json(&made);
        assert_eq!(report["growing"], true, "{report}");
        assert_eq!(report["missing"], Value::Array(Vec::new()), "{report}");
        assert!(report["duration_s"].as_f64().unwrap() > 0.5, "{report}");
        assert_eq!(report["processes"][0]["pid"], target.pid(), "{report}");
    }
    // The other readers say the same.
    for command in [&["report"][..], &["convert", "-o", "-", "-f", "markdown"]] {
        let read = run(&[command, &[file]].concat());
        assert!(
            read.stdout.contains("still being recorded"),
            "{}",
            read.stdout
        );
        assert!(!read.stderr.contains("warning"), "{}", read.stderr);
    }
    let recorded = recorder.interrupt().expect_success();
    let report = recorded.report();
    assert_eq!(report["growing"], false, "{report}");
    assert_eq!(report["missing"], Value::Array(Vec::new()), "{report}");
}

#[test]
fn a_recording_without_a_name_is_found_by_its_process() {
    let Some(target) = target() else { return };
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    let mut command = Command::new(TORCHSPY);
    command.args(["record", "-o", "a.folded", "--pid", &pid]);
    let recorder = Recorder::spawn(command, folder);
    let read = || run(&["snapshot", &pid, "-o", "-", "-f", "json"]);
    wait_until("a first segment", || read().status.success());
    let report = json(&read());
    assert_eq!(report["growing"], true);
    // The page's own name comes from the recording's, into the working directory.
    let made = output_of(
        Command::new(TORCHSPY)
            .args(["snapshot", &pid])
            .current_dir(recorder.folder.path()),
    );
    assert!(made.status.success(), "{}", made.stderr);
    let page = names(recorder.folder.path())
        .into_iter()
        .find(|name| name.ends_with(".snapshot.html"));
    assert!(page.is_some(), "{}", made.stderr);
    recorder.interrupt().expect_success();
}

#[test]
fn what_cannot_be_found_has_a_cause_and_a_hint() {
    let own = std::process::id().to_string();
    assert_error(
        &run(&["snapshot", &own]),
        "no recording under way",
        &["record --pid", ".tspy"],
    );
    assert_error(
        &run(&["snapshot", "2147483647"]),
        "there is no process",
        &[".tspy"],
    );
    assert_error(
        &run(&["snapshot", "no/where.tspy"]),
        "cannot open",
        &["NAME.tspy"],
    );
}

/// Whoever opens the page before the end finds what it waits for.
#[test]
fn the_page_says_that_the_recording_is_under_way_until_there_is_one() {
    let Some(target) = target() else { return };
    let options = &["-o", "run.html", "-o", "all.folded"];
    let how = How {
        options,
        ..How::default()
    };
    let recorder = Recorder::attach(target.pid(), how);
    recorder.wait_for_segment();
    let page = recorder.folder.path().join("run.html");
    let early = fs::read_to_string(&page).unwrap();
    let hint = format!("torchspy snapshot {}", target.pid());
    for says in [
        "This recording is under way",
        "options.py",
        &hint,
        "torchspy convert run.tspy -o run.html --force",
    ] {
        assert!(early.contains(says), "{says}: {early}");
    }
    let recorded = recorder.interrupt().expect_success();
    assert!(!is_so_far(&page_at(&page)));
    assert_eq!(
        names(recorded.folder.path()),
        ["all.folded", "run.html", "run.tspy"]
    );
    // An interval of it, in any format.
    let file = recorded.path();
    let part = |format: &str| {
        let words = ["convert", file.to_str().unwrap(), "-o", "-", "-f", format];
        run(&[&words[..], &["--from", "0.2", "--to", "0.5"]].concat())
    };
    let length = json(&part("json"))["duration_s"].as_f64().unwrap();
    assert!((length - 0.3).abs() < 1e-6, "{length}");
    for format in ["html", "folded", "speedscope", "svg", "csv"] {
        assert!(part(format).status.success(), "{format}");
    }
    assert_eq!(head_of_page(&part("html").stdout)["part"], true);
    let words = ["convert", file.to_str().unwrap(), "-o", "x.json"];
    assert_error(
        &run(&[&words[..], &["--from", "1h"]].concat()),
        "nothing was sampled in this interval",
        &["--from and --to"],
    );
}

/// Another torchspy that replaced the page would leave the last one without a name.
#[test]
fn outputs_of_a_recording_under_way_are_not_replaced() {
    let Some(target) = target() else { return };
    let how = How {
        options: &["-o", "run.html"],
        fault: None,
    };
    let recorder = Recorder::attach(target.pid(), how);
    recorder.wait_for_segment();
    let file = recorder.path();
    let page = file.with_extension("html");
    let words = [
        &*file.to_string_lossy(),
        "-o",
        &*page.to_string_lossy(),
        "--force",
    ];
    for command in ["snapshot", "convert"] {
        let refused = run(&[&[command][..], &words].concat());
        assert_error(
            &refused,
            "is an output of a torchspy that records",
            &["another name"],
        );
    }
    let recorded = recorder.interrupt().expect_success();
    assert!(!is_so_far(&page_at(
        &recorded.path().with_extension("html")
    )));
}

#[test]
fn the_page_is_rewritten_while_recording_and_at_the_end() {
    let Some(python) = any_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    // A trainer that saves and goes on at Ctrl-C, which the terminal sends to torchspy as well.
    let script = "import signal, sys\n\
        def goes_on(*_): print('saved', flush=True)\n\
        signal.signal(signal.SIGINT, goes_on)\n\
        open('stands', 'w').close()\n\
        while not __import__('os').path.exists('end'): sum(range(1000))\n";
    let how = How {
        options: &["-o", "run.html", "--snapshot", "5s"],
        fault: None,
    };
    let command = Recorder::launch_command(&[&python, "-c", script], how);
    let mut recorder = Recorder::spawn(command, folder);
    let page = recorder.folder.path().join("run.html");
    let content = || fs::read_to_string(&page).unwrap_or_default();
    wait_until("a first page", || content().contains(DATA));
    let first = page_at(&page);
    assert!(is_so_far(&first), "{first}");
    let stands = recorder.folder.path().join("stands");
    wait_until("the program's handler", || stands.exists());
    killpg(Pid::from_raw(recorder.pid()), Signal::SIGINT).unwrap();
    recorder.wait_for_message("interrupted");
    let grown = |head: &Value| head["length_us"].as_u64() > first["length_us"].as_u64();
    wait_until("a second page", || grown(&page_at(&page)));
    assert!(is_so_far(&page_at(&page)));
    fs::write(recorder.folder.path().join("end"), "").unwrap();
    let recorded = recorder.finish().expect_success();
    let last = page_at(&recorded.folder.path().join("run.html"));
    assert!(!is_so_far(&last) && grown(&last), "{last}");
    assert_eq!(
        names(recorded.folder.path()),
        ["end", "run.html", "run.tspy", "stands"]
    );
    assert!(
        recorded.messages.contains("wrote run.html"),
        "{}",
        recorded.messages
    );
    assert!(
        !recorded.messages.contains("warning"),
        "{}",
        recorded.messages
    );
}

#[test]
fn a_page_that_somebody_replaced_stays() {
    let Some(target) = target() else { return };
    let how = How {
        options: &["-o", "run.html", "--snapshot", "5s"],
        fault: None,
    };
    let mut recorder = Recorder::attach(target.pid(), how);
    let page = recorder.folder.path().join("run.html");
    wait_until("a first page", || {
        fs::read_to_string(&page).is_ok_and(|text| text.contains(DATA))
    });
    fs::write(recorder.folder.path().join("mine"), "mine").unwrap();
    fs::rename(recorder.folder.path().join("mine"), &page).unwrap();
    recorder.wait_for_message("was replaced by another file");
    let recorded = recorder.interrupt();
    assert_eq!(
        fs::read_to_string(recorded.folder.path().join("run.html")).unwrap(),
        "mine"
    );
    assert_eq!(recorded.status.code(), Some(1), "{}", recorded.messages);
    assert_eq!(names(recorded.folder.path()), ["run.html", "run.tspy"]);
}

/// The name of a recording may be that of another file by its end.
#[test]
fn a_recording_that_loses_its_name_is_still_the_one_that_is_reported() {
    for is_replaced in [false, true] {
        let Some(target) = target() else { return };
        let options = &["-o", "run.txt"];
        let how = How {
            options,
            ..How::default()
        };
        let recorder = Recorder::attach(target.pid(), how);
        recorder.wait_for_segment();
        let path = recorder.path();
        let moved = recorder.folder.path().join("moved.tspy");
        if is_replaced {
            fs::rename(&path, &moved).unwrap();
            fs::write(&path, "of somebody else").unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        let recorded = recorder.interrupt();
        let said = &recorded.messages;
        assert!(!recorded.status.success(), "{said}");
        assert!(said.contains("hint: "), "{said}");
        let report = fs::read_to_string(recorded.folder.path().join("run.txt")).unwrap();
        assert!(report.contains("options.py"), "{report}");
        let kept = match is_replaced {
            true => {
                assert!(said.contains("was moved or replaced"), "{said}");
                assert_eq!(fs::read(&path).unwrap(), b"of somebody else");
                moved
            }
            false => {
                assert!(said.contains("was removed while recording"), "{said}");
                path
            }
        };
        let read = json(&run(&["report", "--json", kept.to_str().unwrap()]));
        assert_eq!(read["missing"], Value::Array(Vec::new()), "{read}");
    }
}
