//! Recording a job: names made of facts, whose files never collide, and ranks that are left out.

use crate::faults::{
    Output, Recorder, TORCHSPY, Target, any_python, assert_error, missed_s, output_of, program,
    wait_until,
};
use crate::installed::torch_python;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// `torchspy record` in a folder, with these variables and no other job's.
fn record(folder: &TempDir, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(TORCHSPY);
    command
        .arg("record")
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null());
    for (name, value) in variables {
        command.env(name, value);
    }
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Files below a folder, by their paths in it.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(
                files(&entry.path())
                    .into_iter()
                    .map(|below| format!("{name}/{below}")),
            ),
            false => found.push(name),
        }
    }
    found.sort();
    found
}

fn inspect(path: &Path) -> String {
    let output = output_of(Command::new(TORCHSPY).arg("inspect").arg(path));
    assert!(
        output.status.success(),
        "{}: {}",
        path.display(),
        output.stderr
    );
    output.stdout
}

fn expect_success(output: &Output) {
    assert!(output.status.success(), "{}", output.stderr);
}

const SLURM: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "42"),
    ("SLURM_PROCID", "9"),
    ("SLURM_NTASKS", "16"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "4"),
];

#[test]
fn names_are_made_of_facts_and_folders_are_made() {
    let folder = folder();
    let open_mpi = [
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("PMIX_NAMESPACE", "../prterun-a-77@1"),
    ];
    for (variables, pattern, expected) in [
        (SLURM, "runs/{job}/{node}-{rank}", "runs/42/4-9"),
        (SLURM, "{{{local_rank}of{world_size}", "{1of16"),
        (&open_mpi, "{job}/{rank}", "prterun-a-77_1/3"),
    ] {
        let (recording, page) = (format!("{pattern}.tspy"), format!("{pattern}.html"));
        let outputs = ["-o", &recording, "-o", &page, "--", "true"];
        expect_success(&output_of(&mut record(&folder, variables, &outputs)));
        for extension in ["tspy", "html"] {
            let path = folder.path().join(format!("{expected}.{extension}"));
            assert!(path.is_file(), "{}", path.display());
        }
    }
    assert_eq!(files(folder.path()).len(), 6);
}

#[test]
fn a_fact_without_a_value_is_an_error_before_anything_runs() {
    let folder = folder();
    let torchrun = folder.path().join("torchrun");
    let torchrun = torchrun.to_str().unwrap();
    std::os::unix::fs::symlink("/bin/touch", torchrun).unwrap();
    for (variables, pattern, command, cause, hint) in [
        (
            &[][..],
            "{rank}.tspy",
            "touch",
            "{rank} has no value here",
            "{host} {pid} {time}",
        ),
        (
            &[],
            "{job}/x.tspy",
            "touch",
            "{job} has no value here",
            "TORCHSPY_JOB",
        ),
        (
            SLURM,
            "{rank}.tspy",
            torchrun,
            "torchrun starts several ranks",
            "{job} {host} {node}",
        ),
        (
            SLURM,
            "{rnk}.tspy",
            "touch",
            "no fact is called {rnk}",
            "{local_rank}",
        ),
    ] {
        let arguments = ["-o", pattern, "--", command, "ran"];
        let output = output_of(&mut record(&folder, variables, &arguments));
        assert_error(&output, cause, &[hint]);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(files(folder.path()), ["torchrun"]);
    }
    let arguments = ["-o", "{job}/{node}.tspy", "--", torchrun, "ran"];
    expect_success(&output_of(&mut record(&folder, SLURM, &arguments)));
    assert_eq!(files(folder.path()), ["42/4.tspy", "ran", "torchrun"]);
}

#[test]
fn attached_the_facts_are_the_targets() {
    let Some(python) = any_python() else { return };
    let mut command = Command::new(&python);
    command
        .arg(program("options.py"))
        .envs([("RANK", "5"), ("TORCHELASTIC_RUN_ID", "run7")]);
    let mut target = Target::spawn(&mut command);
    target.expect("ready");
    let folder = folder();
    let pid = target.pid().to_string();
    let arguments = ["-d", "200ms", "-p", &pid, "-o", "{job}/{rank}-{pid}.tspy"];
    expect_success(&output_of(&mut record(&folder, SLURM, &arguments)));
    let given = [("TORCHSPY_JOB", "mine")];
    expect_success(&output_of(&mut record(&folder, &given, &arguments)));
    let names = ["mine", "run7"].map(|job| format!("{job}/5-{pid}.tspy"));
    assert_eq!(files(folder.path()), names);
}

#[test]
fn a_name_that_is_taken_gets_a_number() {
    let folder = folder();
    fs::write(folder.path().join("9.html"), "older").unwrap();
    let arguments = ["-o", "{rank}.tspy", "-o", "{rank}.html", "--", "true"];
    let output = output_of(&mut record(&folder, SLURM, &arguments));
    expect_success(&output);
    assert!(
        output
            .stderr
            .contains("9.tspy is there already: writing 9-2.tspy\n"),
        "{}",
        output.stderr
    );
    assert_eq!(files(folder.path()), ["9-2.html", "9-2.tspy", "9.html"]);
    assert_eq!(
        fs::read_to_string(folder.path().join("9.html")).unwrap(),
        "older"
    );
    let arguments = [&["--force"], &arguments[..]].concat();
    expect_success(&output_of(&mut record(&folder, SLURM, &arguments)));
    assert_ne!(
        fs::read_to_string(folder.path().join("9.html")).unwrap(),
        "older"
    );
    assert_eq!(files(folder.path()).len(), 4);
}

/// Ranks whose names are the same by mistake, all at once.
#[test]
fn recordings_that_start_together_do_not_collide() {
    const RANKS: usize = 12;
    let folder = folder();
    let (gate, opener) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    let ranks: Vec<_> = (0..RANKS)
        .map(|_| {
            let script = r#"read line; exec "$0" record -o '{job}/run.tspy' -- true"#;
            Command::new("sh")
                .args(["-c", script, TORCHSPY])
                .current_dir(folder.path())
                .env("SLURM_JOB_ID", "42")
                .stdin(gate.try_clone().unwrap())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    // Its end lets all of them go.
    drop(opener);
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.contains("wrote 42/run"),
            "{text}"
        );
    }
    let names = files(&folder.path().join("42"));
    let expected = |name: &String| {
        (1..=RANKS).any(|number| match number {
            1 => name == "run.tspy",
            _ => *name == format!("run-{number}.tspy"),
        })
    };
    assert_eq!(
        names.iter().filter(|name| expected(name)).count(),
        RANKS,
        "{names:?}"
    );
    assert_eq!(names.len(), RANKS, "{names:?}");
    let mut pids: Vec<String> = names
        .iter()
        .map(|name| inspect(&folder.path().join("42").join(name)))
        .map(|text| {
            text.lines()
                .find(|line| line.contains("pid"))
                .unwrap()
                .to_owned()
        })
        .collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), RANKS, "each is of a process of its own");
}

/// torchrun with a torchspy for each rank.
#[test]
fn ranks_of_torchrun_are_told_apart() {
    let Some(python) = torch_python() else { return };
    let folder = folder();
    let output = output_of(
        Command::new(python)
            .args([
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "2",
            ])
            .args(["--rdzv-id", "run7", "--no-python", TORCHSPY, "record"])
            .args([
                "-o",
                "{job}/{rank}of{world_size}-{local_rank}n{node}.tspy",
                "--",
                "true",
            ])
            .current_dir(folder.path()),
    );
    expect_success(&output);
    let names = files(folder.path());
    let ends: Vec<&str> = names
        .iter()
        .filter_map(|name| name.split('/').nth(1))
        .collect();
    assert_eq!(ends, ["0of2-0n0.tspy", "1of2-1n0.tspy"], "{names:?}");
}

#[test]
fn a_rank_that_is_not_chosen_runs_as_without_torchspy() {
    let folder = folder();
    let probe = "echo $$; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd; exit 7";
    let arguments = [
        "--ranks",
        "0,8",
        "-o",
        "{rank}.tspy",
        "--",
        "sh",
        "-c",
        probe,
    ];
    let child = record(&folder, SLURM, &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let direct = Command::new("sh")
        .args(["-c", probe])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    let lines = |bytes: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(bytes);
        text.lines().map(str::to_owned).collect()
    };
    let (through, direct) = (lines(&output.stdout), lines(&direct.stdout));
    assert_eq!(
        through[0],
        pid.to_string(),
        "torchspy itself becomes the program"
    );
    assert_eq!(through[1..], direct[1..]);
    let said = "rank 9 is not of --ranks 0,8: it runs without a recording";
    assert_eq!(lines(&output.stderr), [said]);
    assert!(files(folder.path()).is_empty());

    for (program, status) in [("no-such-program-here", 127), ("/tmp", 126)] {
        let arguments = ["--ranks", "0,8", "--", program];
        let output = output_of(&mut record(&folder, SLURM, &arguments));
        assert_error(&output, &format!("cannot run {program}"), &[]);
        assert_eq!(output.status.code(), Some(status));
    }
    let arguments = ["--ranks", "0,8-15", "-o", "{rank}.tspy", "--", "true"];
    expect_success(&output_of(&mut record(&folder, SLURM, &arguments)));
    assert_eq!(files(folder.path()), ["9.tspy"]);
    let text = inspect(&folder.path().join("9.tspy"));
    assert!(
        text.contains("only ranks 0,8-15 are sampled (--ranks)"),
        "{text}"
    );
}

#[test]
fn an_attached_rank_that_is_not_chosen_is_left_alone() {
    let folder = folder();
    let mut sleeper = Command::new("sleep")
        .arg("60")
        .env("RANK", "3")
        .spawn()
        .unwrap();
    let pid = sleeper.id().to_string();
    let arguments = ["--ranks", "every:2", "-p", &pid, "-o", "run.tspy"];
    let output = output_of(&mut record(&folder, &[], &arguments));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    expect_success(&output);
    assert!(
        output
            .stderr
            .starts_with("rank 3 is not of --ranks every:2: it is not recorded\n"),
        "{}",
        output.stderr
    );
    assert!(files(folder.path()).is_empty());
}

/// A launcher of three ranks, each with a worker, that a task of Slurm started. Workers begin once
/// all ranks were seen: whoever sees a rank late sees its worker with it. All go on until these
/// were seen, too.
const LAUNCHER: &str = r#"
import os, subprocess, sys, time
ranks = [
    subprocess.Popen(
        [sys.executable, "rank.py"],
        env={**os.environ, "RANK": str(rank), "BEGUN": str(time.monotonic())},
    )
    for rank in range(3)
]
for rank in ranks:
    rank.wait()
"#;
const RANK: &str = r#"
import os, subprocess, sys, time
def compute():
    begun = time.monotonic()
    while time.monotonic() < begun + (1 if os.path.exists("end") else 300):
        sum(range(1000))
if len(sys.argv) == 1:
    took = time.monotonic() - float(os.environ["BEGUN"])
    os.write(1, f"{os.environ['RANK']} {took}\n".encode())
    while not os.path.exists("workers"):
        sum(range(1000))
    worker = subprocess.Popen([sys.executable, __file__, "worker"])
    compute()
    worker.wait()
else:
    compute()
"#;

#[test]
fn around_a_launcher_only_chosen_ranks_and_their_workers_are_sampled() {
    let Some(python) = any_python() else { return };
    let folder = folder();
    fs::write(folder.path().join("torchrun"), LAUNCHER).unwrap();
    fs::write(folder.path().join("rank.py"), RANK).unwrap();
    let outputs = ["-o", "run.tspy", "-o", "run.json", "--ranks", "0,2", "--"];
    let arguments = [&outputs[..], &[&python, "torchrun"]].concat();
    let recording = record(&folder, SLURM, &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let is_left_out = |process: &serde_json::Value| {
        process["note"] == "left out by --ranks: rank 1" && process["role"] == "other"
    };
    let wait_for = |what: &str, of_a_rank: usize| {
        wait_until(what, || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            let mut command = Command::new(TORCHSPY);
            command.args(["report", "--json", "run.tspy"]);
            let output = output_of(command.current_dir(folder.path()));
            let report: serde_json::Value =
                serde_json::from_str(&output.stdout).unwrap_or_default();
            let none = Vec::new();
            let processes = report["processes"].as_array().unwrap_or(&none);
            let count = |rank: u32| processes.iter().filter(|each| each["rank"] == rank).count();
            [0, 2].iter().all(|&rank| count(rank) >= of_a_rank) && processes.iter().any(is_left_out)
        });
    };
    wait_for("all ranks are seen", 1);
    fs::write(folder.path().join("workers"), "").unwrap();
    wait_for("workers of the chosen ranks are seen", 2);
    fs::write(folder.path().join("end"), "").unwrap();
    let output = recording.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = fs::read_to_string(folder.path().join("run.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let processes = report["processes"].as_array().unwrap();
    let count = |is: &dyn Fn(&serde_json::Value) -> bool| {
        processes.iter().filter(|process| is(process)).count()
    };
    for (rank, expected) in [(0, 2), (1, 0), (2, 2)] {
        let found = count(&|process| process["rank"] == rank);
        assert_eq!(found, expected, "{rank}: {text}");
    }
    assert_eq!(count(&is_left_out), 1, "without its worker: {text}");
    assert_eq!(processes.len(), 6, "with the launcher: {text}");
    let wall_s = |process: &serde_json::Value| process["wall_s"].as_f64().unwrap();
    let of_left_out = processes.iter().filter(|process| is_left_out(process));
    let sampled_s: f64 = of_left_out.map(wall_s).sum();
    // Whoever gets no CPU delays that: the rank before its exec, or torchspy before it sees it.
    let printed = String::from_utf8_lossy(&output.stdout);
    let took = printed.lines().find_map(|line| line.strip_prefix("1 "));
    let took_s: f64 = took.unwrap().parse().unwrap();
    let missed_s = missed_s(&report);
    assert!(
        sampled_s < 0.5 + took_s + missed_s,
        "only before its exec, {took_s} s, and {missed_s} s without a poll: {text}"
    );
}

/// Ranks that a program sets for itself are known some time after their start.
#[test]
fn a_rank_that_sets_its_own_number_is_left_out_once_it_is_known() {
    let Some(python) = any_python() else { return };
    let folder = folder();
    let script = "import os, sys\n\
        rank = os.fork()\n\
        if rank == 0:\n\
        \x20   os.environ['RANK'] = '1'\n\
        \x20   while os.getppid() != 1 and not os.path.exists('end'): sum(range(10000))\n\
        else: os.waitpid(rank, 0)\n";
    let arguments = [
        "-o", "run.tspy", "--ranks", "0", "--", &python, "-c", script,
    ];
    let mut child = record(&folder, &[], &arguments).spawn().unwrap();
    wait_until("the rank is left out", || {
        let mut command = Command::new(TORCHSPY);
        let output = output_of(
            command
                .args(["inspect", "run.tspy"])
                .current_dir(folder.path()),
        );
        output.stdout.contains("left out by --ranks: rank 1")
    });
    fs::write(folder.path().join("end"), "").unwrap();
    assert!(child.wait().unwrap().success());
}

fn trigger(folder: &Path) {
    let mut command = Command::new(TORCHSPY);
    let output = output_of(command.args(["trigger", "42"]).current_dir(folder));
    expect_success(&output);
    assert!(output.stdout.is_empty());
}

#[test]
fn each_trigger_makes_a_recording_and_nothing_is_sampled_before() {
    let folder = folder();
    let script = "while ! [ -e end ]; do sleep 0.1; done; exit 7";
    let options = [
        "--trigger",
        "file:{job}",
        "--trigger-for",
        "1s",
        "-o",
        "{job}/{rank}.tspy",
    ];
    let arguments = [&options[..], &["--", "sh", "-c", script]].concat();
    let command = record(&folder, SLURM, &arguments);
    let mut recorder = Recorder::spawn(command, folder);
    let path = recorder.folder.path().to_owned();
    recorder.wait_for_message("waiting for: torchspy trigger 42");
    assert_eq!(files(&path), [""; 0]);
    for name in ["9.tspy", "9-2.tspy"] {
        trigger(&path);
        recorder.wait_for_message("torchspy trigger was run: recording for 1s");
        recorder.wait_for_message(&format!("wrote 42/{name}"));
        let text = inspect(&path.join("42").join(name));
        assert!(
            text.contains("begun because torchspy trigger was run"),
            "{text}"
        );
    }
    fs::write(path.join("end"), "").unwrap();
    let recorded = recorder.finish();
    assert_eq!(recorded.status.code(), Some(7), "{}", recorded.messages);
    assert_eq!(
        files(&path),
        ["42/.torchspy-trigger", "42/9-2.tspy", "42/9.tspy", "end"]
    );
}

#[test]
fn a_recorder_that_waits_ends_with_its_target_or_by_an_interrupt() {
    for by_interrupt in [false, true] {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let folder = folder();
        let pid = sleeper.id().to_string();
        let arguments = ["--trigger", "file:.", "-p", &pid, "-o", "run.tspy"];
        let command = record(&folder, &[], &arguments);
        let mut recorder = Recorder::spawn(command, folder);
        recorder.wait_for_message("waiting for: torchspy trigger .");
        let recorded = match by_interrupt {
            true => recorder.interrupt(),
            false => {
                sleeper.kill().unwrap();
                recorder.finish()
            }
        };
        let _ = sleeper.kill();
        sleeper.wait().unwrap();
        assert!(recorded.status.success(), "{}", recorded.messages);
        assert_eq!(files(recorded.folder.path()), [""; 0]);
    }
}
