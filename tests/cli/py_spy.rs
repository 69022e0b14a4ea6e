//! torchspy under py-spy's name: what it prints of a program at rest is py-spy's own, to the byte.

use crate::faults::{TORCHSPY, Target, any_python, program, wait_until};
use crate::installed::{peer, python};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with a link `py-spy` to torchspy, made as users make it.
fn linked() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let output = install(folder.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let link = folder.path().join("py-spy");
    assert_eq!(output.stdout, format!("{}\n", link.display()).into_bytes());
    (folder, link)
}

fn install(folder: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(TORCHSPY);
    command.arg("install-py-spy").arg(folder).args(options);
    command.output().unwrap()
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn printed(program: &Path, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} {arguments:?}: {said}",
        program.display()
    );
    String::from_utf8(output.stdout).unwrap()
}

/// tests/programs/at_rest.py, with each thread where it stays, as the real py-spy sees it.
fn at_rest(python: &str, real: &Path) -> Target {
    let script = program("at_rest.py");
    let target = Target::start(&[python, &script]);
    let lines: Vec<String> = fs::read_to_string(&script)
        .unwrap()
        .lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with("# at rest"))
        .map(|(index, _)| format!("(at_rest.py:{})", index + 1))
        .collect();
    let pid = target.pid().to_string();
    wait_until("every thread is where it stays", || {
        // It may look while a thread starts.
        let output = run(real, &["dump", "--pid", &pid]);
        let text = String::from_utf8_lossy(&output.stdout);
        let threads = text.split("\nThread ").skip(1);
        let innermost: Vec<&str> = threads.filter_map(|each| each.lines().nth(1)).collect();
        innermost.len() == 5
            && innermost
                .iter()
                .all(|frame| lines.iter().any(|line| frame.ends_with(line)))
    });
    target
}

fn compare_dumps(version: &str) {
    let Some(real) = peer("py-spy") else { return };
    let Some(python) = python(version) else {
        return;
    };
    let (_folder, own) = linked();
    let target = at_rest(&python, &real);
    let pid = target.pid().to_string();
    for options in [
        "",
        "--json",
        "--locals",
        "-ll",
        "--json --locals",
        "--full-filenames",
        "--nonblocking -j",
        "--subprocesses",
    ] {
        // Without a stop the real one does not know the threads of Python 3.10 and older.
        if version == "3.10" && options.starts_with("--nonblocking") {
            continue;
        }
        let mut arguments = vec!["dump", "--pid", &pid];
        arguments.extend(options.split_whitespace());
        // The real one stops threads, and finds those active that have not slept again.
        let printed = |program: &Path| {
            wait_until("all sleep", || {
                target.states().iter().all(|&state| state == b'S')
            });
            printed(program, &arguments)
        };
        assert_eq!(printed(&own), printed(&real), "Python {version}: {options}");
    }
    // The real one refuses both together.
    let text = printed(&own, &["dump", "--pid", &pid, "--native", "--nonblocking"]);
    for frame in [
        "    nap (at_rest.py:",
        " (libc.so.6)",
        "    locked (at_rest.py:",
    ] {
        assert!(text.contains(frame), "{frame}: {text}");
    }
}

#[test]
fn dumps_are_as_py_spys_3_10() {
    compare_dumps("3.10");
}

#[test]
fn dumps_are_as_py_spys_3_11() {
    compare_dumps("3.11");
}

#[test]
fn dumps_are_as_py_spys_3_13() {
    compare_dumps("3.13");
}

#[test]
fn a_python_that_py_spys_walker_does_not_read_is_dumped_by_the_snapshot() {
    let Some(python) = python("3.13t") else {
        return;
    };
    let (_folder, own) = linked();
    let target = at_rest(&python, &own);
    let pid = target.pid().to_string();
    let text = printed(&own, &["dump", "--pid", &pid]);
    assert!(
        text.contains(&format!("\nThread {pid} (idle): \"MainThread\"\n")),
        "{text}"
    );
    assert!(
        text.contains("(idle): \"worker-1\"\n    nap (at_rest.py:"),
        "{text}"
    );
    let json = printed(&own, &["dump", "--pid", &pid, "--json"]);
    let threads: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(threads.as_array().unwrap().len(), 5, "{json}");
}

/// Each stack without its count, which is that of the samples that were taken.
fn raw_stacks(program: &Path, pid: &str, options: &[&str]) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stacks.txt");
    let mut arguments = vec!["record", "-f", "raw", "-d", "1", "-p", pid, "-o"];
    arguments.push(file.to_str().unwrap());
    arguments.extend(options);
    printed(program, &arguments);
    // Over what is there.
    printed(program, &arguments);
    let text = fs::read_to_string(&file).unwrap();
    let stack = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        assert!(count.parse::<u64>().is_ok_and(|count| count > 0), "{line}");
        stack.to_owned()
    };
    text.lines().map(stack).collect()
}

#[test]
fn raw_stacks_are_as_py_spys() {
    let Some(real) = peer("py-spy") else { return };
    let Some(python) = any_python() else { return };
    let (_folder, own) = linked();
    let target = at_rest(&python, &real);
    let pid = target.pid().to_string();
    for options in [
        &["-i"][..],
        &["-i", "-F"],
        &["-i", "--nolineno", "-s"],
        &["-i", "--full-filenames", "--nonblocking"],
        // All sleep. Threads that it stopped itself count as active at the real one's next sample.
        &["--nonblocking"],
    ] {
        assert_eq!(
            raw_stacks(&own, &pid, options),
            raw_stacks(&real, &pid, options),
            "{options:?}"
        );
    }
}

#[test]
fn another_py_spy_is_not_replaced_unasked() {
    let (folder, link) = linked();
    // A link to torchspy is.
    assert!(install(folder.path(), &[]).status.success());
    fs::remove_file(&link).unwrap();
    fs::write(&link, "another").unwrap();
    let output = install(folder.path(), &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("hint: --force"), "{said}");
    assert_eq!(fs::read_to_string(&link).unwrap(), "another");
    assert!(install(folder.path(), &["--force"]).status.success());
    assert_eq!(
        fs::canonicalize(&link).unwrap(),
        fs::canonicalize(TORCHSPY).unwrap()
    );
}

/// Lines of py-spy's documentation and of programs that call it: each is taken, or answered with
/// what to type. No process has the pid, and no program is on PATH.
#[test]
fn a_hundred_lines_of_py_spy_are_taken_or_answered() {
    let (_folder, link) = linked();
    let table = program("../fixtures/py_spy_lines.txt");
    let table = fs::read_to_string(table).unwrap();
    let lines = table.lines().filter(|line| line.starts_with("py-spy "));
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for line in lines {
        count += 1;
        let line = line.replace("PID", "2147483647");
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        for program in [link.as_path(), Path::new(TORCHSPY)] {
            let output = Command::new(program)
                .args(&words)
                .env("PATH", "")
                .current_dir(&folder)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            if words
                .iter()
                .any(|word| ["--help", "--version"].contains(word))
            {
                assert!(output.status.success(), "{line}: {said}");
                continue;
            }
            let has = |start: &str| said.lines().any(|line| line.starts_with(start));
            assert!(!output.status.success(), "{line}: {said}");
            assert!(has("error: ") && has("hint: "), "{line}: {said}");
            let known = [
                "there is no process 2147483647",
                "needs a terminal",
                "python",
            ];
            let is_taken = known.iter().any(|known| said.contains(known));
            // Of py-spy's own lines these are errors there, too, or need a core file.
            let is_answered = words.contains(&"2147483647") && words.len() == 2
                || ["--core", "-c", "--pid"]
                    .iter()
                    .any(|word| words.get(1) == Some(word))
                || program == Path::new(TORCHSPY);
            assert!(is_taken || is_answered, "{line}: {said}");
        }
    }
    assert!(count >= 100, "{count}");
}

/// What was read while a thread ran may be of different moments: no value is better than a wrong
/// one. Each call of the program has one number in all its variables.
#[test]
fn variables_of_running_threads_are_of_one_moment() {
    let Some(python) = any_python() else { return };
    let (_folder, link) = linked();
    let target = Target::start(&[&python, &program("at_rest.py"), "--spin"]);
    let pid = target.pid().to_string();
    let mut frames = 0;
    for _ in 0..5 {
        let json = printed(&link, &["dump", "-j", "-l", "--pid", &pid]);
        let threads: serde_json::Value = serde_json::from_str(&json).unwrap();
        for frame in threads[0]["frames"].as_array().unwrap() {
            frames += 1;
            let locals = frame["locals"].as_array().into_iter().flatten();
            let values: BTreeSet<String> = locals
                .filter(|local| local["arg"] == true)
                .map(|local| local["repr"].to_string())
                .collect();
            assert!(values.len() <= 1, "{json}");
        }
    }
    assert!(frames > 0);
}
