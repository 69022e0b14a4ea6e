//! Ranks under torchrun, each in a recording of its own, answered for as one job.

use crate::faults::{marked, program};
use crate::installed::{megatron_python, spark_python, tables_python, torch_python};
use crate::{STEADY, torchspy};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Ranks of the job.
const RANKS: &str = "4";

/// Records four ranks of `slow_rank.py`, each by a torchspy of its own.
fn record(python: &Path, folder: &Path, slow: i32) {
    let pattern = folder.join("{rank}.tspy").display().to_string();
    let ran = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone"])
        .args(["--nproc-per-node", RANKS, "--no-python"])
        .args([env!("CARGO_BIN_EXE_torchspy"), "record"])
        .args(STEADY)
        .args(["-o", &pattern, "--"])
        .arg(python)
        .args([&program("slow_rank.py"), "--slow-rank", &slow.to_string()])
        // More than a rank that has no CPU for some seconds costs the others.
        .args(["--steps", "160", "--rounds", "400000"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
}

/// Copies a recording as one of a later version of the format.
fn make_newer(recording: &Path, path: &Path) {
    let mut bytes = fs::read(recording).unwrap();
    bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
    // The checksum is that of the head's other fields and of its block.
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let head = [&bytes[..16], &bytes[20..20 + length]].concat();
    bytes[16..20].copy_from_slice(&crc32fast::hash(&head).to_le_bytes());
    fs::write(path, bytes).unwrap();
}

pub(crate) fn said(ran: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&ran.stdout) + &text(&ran.stderr)
}

fn report(folder: &Path, options: &[&str]) -> String {
    let ran = torchspy()
        .arg("report")
        .arg(folder)
        .args(options)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    String::from_utf8(ran.stdout).unwrap()
}

fn json(folder: &Path) -> Value {
    serde_json::from_str(&report(folder, &["--json"])).unwrap()
}

#[test]
fn the_slow_rank_of_a_job_is_named_with_its_line() {
    let Some(python) = torch_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record(&python, folder, 2);
    let first = json(folder);
    let text = report(folder, &[]);
    assert_eq!(first["world_size"], 4, "{text}");
    assert_eq!(first["missing_ranks"], Value::Array(Vec::new()), "{text}");
    assert_eq!(first["parallel"]["source"], "none", "{text}");
    let late = &first["groups"][0]["stragglers"][0];
    assert_eq!(late["rank"], 2, "{text}");
    let lines = late["lines"].as_array().unwrap();
    let line = marked("slow_rank.py", "transform");
    assert_eq!(lines[0]["function"], "slow_transform", "{text}");
    let at = lines[0]["line"].as_u64().unwrap();
    assert!((line - 1..=line).contains(&at), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("arrives last"), "{text}");

    ask(folder, line);

    // The second report reads what the first has kept, and says the same.
    let kept = folder.join("0.reduced.parquet");
    assert!(kept.exists());
    assert_eq!(json(folder), first);
    // What is kept of a recording that has changed is not used: half of it is gone.
    let cut = folder.join("3.tspy");
    let length = fs::metadata(&cut).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&cut).unwrap();
    file.set_len(length / 2).unwrap();
    // A damaged one is made again: of a cut one, and of one with another bit.
    fs::write(&kept, b"PAR1 and nothing else").unwrap();
    let other = folder.join("1.reduced.parquet");
    let mut bytes = fs::read(&other).unwrap();
    for at in [100, bytes.len() / 2, bytes.len() - 200] {
        bytes[at] ^= 4;
        fs::write(&other, &bytes).unwrap();
        report(folder, &[]);
        let again = fs::read(&other).unwrap();
        assert_ne!(again, bytes, "byte {at}");
        bytes = again;
    }
    // A pipe is not waited for.
    nix::unistd::mkfifo(&folder.join("pipe.tspy"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(folder.join("x.tspy"), b"no recording").unwrap();
    make_newer(&folder.join("0.tspy"), &folder.join("newer.tspy"));
    let second = json(folder);
    assert_eq!(second["groups"][0]["stragglers"][0]["rank"], 2, "{second}");
    let missing = second["recordings"][3]["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{second}");
    let left_out = |at: usize| second["left_out"][at]["file"].as_str().unwrap();
    assert_eq!(
        [0, 1, 2].map(left_out),
        ["newer.tspy", "pipe.tspy", "x.tspy"],
        "{second}"
    );
    let why = second["left_out"][0]["why"].as_str().unwrap();
    assert!(why.contains("it is a recording of format 99"), "{second}");
    assert_eq!(second["ranks"].as_array().unwrap().len(), 4, "{second}");
    let mut wrong = torchspy();
    wrong.arg("report").arg(folder).args(["--mesh", "dp=3"]);
    let wrong = wrong.output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("--mesh makes 3 ranks, and the job has 4"));

    let table = report(folder, &["--csv", "ranks"]);
    // The head, and the ranks.
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(
        table.starts_with("rank,pid,host,file,steps,step_ms"),
        "{table}"
    );
    let page = report(folder, &["--html"]);
    assert!(page.contains("rank 2") && page.contains("slow_transform"));
    convert_to_page(folder, &page);
    let hidden = report(folder, &["--html", "--confidential"]);
    assert!(!hidden.contains("slow_transform"));
}

/// Records four ranks of `mesh_ranks.py`, each by a torchspy of its own.
fn record_mesh(python: &Path, folder: &Path, options: &[&str]) {
    // Several seconds: a recorder that has no CPU for some of them finds the mesh in the others.
    let words = [&["mesh_ranks.py", "--steps", "400"], options].concat();
    record_ranks(RANKS, python, folder, &words);
}

/// Records four ranks of a program with these arguments, each by a torchspy of its own.
fn record_ranks(ranks: &str, python: &Path, folder: &Path, words: &[&str]) {
    let pattern = folder.join("{rank}.tspy").display().to_string();
    let torchspy = env!("CARGO_BIN_EXE_torchspy");
    let ran = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone"])
        .args(["--nproc-per-node", ranks, "--no-python", torchspy])
        .arg("record")
        .args(STEADY)
        .args(["-o", &pattern, "--"])
        .arg(python)
        .arg(program(words[0]))
        .args(&words[1..])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
}

/// Where ranks 0 to 3 are, and the source.
fn places(report: &Value) -> (Vec<&str>, &str) {
    let ranks = report["ranks"].as_array().unwrap().iter();
    let places = ranks.map(|rank| rank["groups"].as_str().unwrap());
    (
        places.collect(),
        report["parallel"]["source"].as_str().unwrap(),
    )
}

/// Meshes of older versions of torch, in variables. Their ranks are reversed, so that a mesh of the
/// usual order would be wrong.
#[test]
fn stages_of_a_device_mesh_in_a_variable_are_compared_with_themselves() {
    let Some(python) = torch_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let options = [
        "--held", "nowhere", "--older", "--order", "reversed", "--names", "pp,tp",
    ];
    record_mesh(&python, folder, &options);
    let found = json(folder);
    let expected = ["pp=1, tp=1", "pp=1, tp=0", "pp=0, tp=1", "pp=0, tp=0"];
    assert_eq!(
        places(&found),
        (expected.to_vec(), "device mesh"),
        "{found}"
    );
    assert_eq!(found["groups"][0]["name"], "pp=0");
    assert_eq!(found["groups"][0]["ranks"], serde_json::json!([2, 3]));
    let text = report(folder, &[]);
    assert!(
        text.contains("parallel groups: pp=2, tp=2 (device mesh)"),
        "{text}"
    );
    // Of several meshes the one with the most ranks and dimensions counts.
    let inspected = torchspy()
        .arg("inspect")
        .arg(folder.join("3.tspy"))
        .output()
        .unwrap();
    let inspected = said(&inspected);
    assert!(inspected.contains("device_mesh world=0-3"));
    assert!(inspected.contains("device_mesh pp=3,1;tp=3,2"));
    // The user knows better.
    let given: Value =
        serde_json::from_str(&report(folder, &["--json", "--mesh", "dp=4"])).unwrap();
    assert_eq!(
        places(&given),
        (vec!["dp=0", "dp=1", "dp=2", "dp=3"], "--mesh")
    );
    let hidden: Value =
        serde_json::from_str(&report(folder, &["--json", "--confidential"])).unwrap();
    assert_eq!(places(&hidden), (expected.to_vec(), "device mesh"));
}

#[test]
fn a_device_mesh_is_found_behind_the_optimizers_parameters() {
    let Some(python) = torch_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    record_mesh(&python, folder, &["--held", "parameters"]);
    let found = json(folder);
    let expected = ["dp=0, tp=0", "dp=0, tp=1", "dp=1, tp=0", "dp=1, tp=1"];
    assert_eq!(
        places(&found),
        (expected.to_vec(), "device mesh"),
        "{found}"
    );
    assert_eq!(found["groups"].as_array().unwrap().len(), 1);
}

#[test]
fn groups_of_megatron_are_read() {
    let Some(python) = megatron_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = ["megatron_ranks.py", "--steps", "400"];
    record_ranks(RANKS, &python, folder, &words);
    let found = json(folder);
    let expected = ["pp=0, tp=0", "pp=0, tp=1", "pp=1, tp=0", "pp=1, tp=1"];
    assert_eq!(places(&found), (expected.to_vec(), "Megatron"), "{found}");
    assert_eq!(found["groups"][1]["name"], "pp=1");
    assert_eq!(found["groups"][1]["ranks"], serde_json::json!([2, 3]));
    let text = report(folder, &[]);
    let line = "parallel groups: pp=2, tp=2 (Megatron)";
    assert!(text.contains(line), "{text}");
    let hidden: Value =
        serde_json::from_str(&report(folder, &["--json", "--confidential"])).unwrap();
    assert_eq!(places(&hidden), (expected.to_vec(), "Megatron"));
}

#[test]
fn context_and_expert_groups_of_megatron_are_read() {
    let Some(python) = megatron_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sizes = ["--pipeline", "1", "--context", "2", "--expert", "4"];
    let words = [&["megatron_ranks.py", "--steps", "200"], &sizes[..]].concat();
    record_ranks("8", &python, folder, &words);
    let found = json(folder);
    // Numbers of ranks grow along tp first, then cp, then dp; experts are spread over four ranks in
    // a row.
    let place = |rank: usize| {
        let (tp, cp, dp, ep) = (rank % 2, rank / 2 % 2, rank / 4, rank % 4);
        format!("dp={dp}, cp={cp}, ep={ep}, tp={tp}")
    };
    let expected: Vec<String> = (0..8).map(place).collect();
    let (found_places, source) = places(&found);
    assert_eq!(
        (found_places, source),
        (expected.iter().map(String::as_str).collect(), "Megatron"),
        "{found}"
    );
    let text = report(folder, &[]);
    let line = "parallel groups: dp=2, cp=2, ep=4, tp=2 (Megatron)";
    assert!(text.contains(line), "{text}");
}

/// The page's queries, over what the report has kept: the slow rank's line comes first, and Spark
/// finds what DuckDB does.
fn ask(folder: &Path, line: u64) {
    let asked = |python: Option<PathBuf>, engine: &str| {
        let runs = tempfile::tempdir().unwrap();
        fs::create_dir(runs.path().join("runs")).unwrap();
        std::os::unix::fs::symlink(folder, runs.path().join("runs/42")).unwrap();
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/job.md");
        let mut command = Command::new(python?);
        command.args([&program("read_reductions.py"), engine, page]);
        let ran = command.current_dir(runs.path()).output().unwrap();
        assert!(ran.status.success(), "{}", said(&ran));
        let found = String::from_utf8(ran.stdout).unwrap();
        let tables = found.split("--\n").skip(1);
        Some(tables.map(str::to_owned).collect::<Vec<String>>())
    };
    let Some(by_duckdb) = asked(tables_python(), "duckdb") else {
        return;
    };
    let first = by_duckdb[1].lines().next().unwrap();
    let is_at = |line: u64| first.starts_with("2 ") && first.contains(&format!(".py {line} "));
    assert!(is_at(line) || is_at(line - 1), "{by_duckdb:?}");
    assert!(by_duckdb[0].lines().count() >= 8, "{by_duckdb:?}");
    if let Some(by_spark) = asked(spark_python(), "spark") {
        assert_eq!(by_spark, by_duckdb[..1]);
    }
}

/// `convert` writes the same page, and replaces a file only with --force.
fn convert_to_page(folder: &Path, page: &str) {
    let path = folder.join("job.html");
    let convert = |options: &[&str]| {
        let mut command = torchspy();
        command.arg("convert").arg(folder).arg("-o").arg(&path);
        command.args(options).output().unwrap()
    };
    let ran = convert(&[]);
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(fs::read_to_string(&path).unwrap(), page);
    let ran = convert(&[]);
    assert!(!ran.status.success() && said(&ran).contains("--force"));
    assert!(convert(&["--force"]).status.success());
    let ran = convert(&["--force", "--by", "module"]);
    assert!(said(&ran).contains("--by module is of one recording"));
    let ran = convert(&["--force", "-f", "svg"]);
    assert!(said(&ran).contains("a job is not written as .svg"));
}

#[test]
fn a_folder_without_recordings_and_options_of_one_recording_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |options: &[&str]| {
        let ran = torchspy()
            .arg("report")
            .arg(folder.path())
            .args(options)
            .output()
            .unwrap();
        assert!(!ran.status.success());
        said(&ran)
    };
    let text = refused(&[]);
    assert!(text.contains("has no recordings"), "{text}");
    let text = refused(&["--by", "op"]);
    assert!(text.contains("--by is of one recording"), "{text}");
    let text = refused(&["--mesh", "dp"]);
    assert!(text.contains("a dimension is NAME=SIZE"), "{text}");
    let text = refused(&["--csv", "functions"]);
    assert!(
        text.contains("its tables are ranks, by_group, clocks"),
        "{text}"
    );
}

/// Steps of a minute, and slower ones: a recording begins by itself, and all that wait for the
/// folder's trigger begin with it.
#[test]
fn steps_that_get_slow_make_a_recording() {
    let Some(python) = torch_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let triggers = ["--trigger", "slow", "--trigger", "file:."];
    let mut trainer = torchspy()
        .arg("record")
        .args(triggers)
        .args(["--trigger-for", "2s", "-o", "slow.tspy", "--"])
        .arg(python)
        .args([&program("gets_slow.py"), "700"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(trainer.stderr.take().unwrap());
    let mut lines = said.lines().map(Result::unwrap);
    let waits = lines.next().unwrap();
    assert!(waits.contains("slower than their median by 4"), "{waits}");
    assert!(lines.any(|line| line.contains("times as long as usual: recording")));
    assert!(lines.any(|line| line.contains("wrote slow.tspy")));
    drop(trainer.stdin.take());
    assert!(lines.all(|line| !line.starts_with("error")));
    assert!(trainer.wait().unwrap().success());
    assert!(folder.path().join(".torchspy-trigger").exists());
    let text = report(&folder.path().join("slow.tspy"), &[]);
    assert!(text.contains("begun because steps took"), "{text}");
}

/// Dumps of torch's flight recorder say who has not called what the others are in.
#[test]
fn flight_recorders_name_the_rank_that_did_not_call() {
    let Some(python) = torch_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Ranks that are left in the last collective may fail as the others end.
    let ran = Command::new(&python)
        .args(["-m", "torch.distributed.run", "--standalone"])
        .args(["--nproc-per-node", "3", &program("flight_ranks.py")])
        .arg(folder.path())
        .env("TORCH_FR_BUFFER_SIZE", "100")
        .output()
        .unwrap();
    let line = marked("flight_ranks.py", "the last");
    for name in ["trace_rank_", "json_rank_"] {
        let of_rank = |rank: u32| {
            let plain = folder.path().join(format!("{name}{rank}"));
            let json = plain.with_extension("json");
            if plain.exists() { plain } else { json }
        };
        assert!(of_rank(2).exists(), "{}", said(&ran));
        let read = |ranks: &[u32], options: &[&str]| {
            let mut command = torchspy();
            command.arg("dump").args(options);
            for rank in ranks {
                command.arg("--from").arg(of_rank(*rank));
            }
            let ran = command.output().unwrap();
            assert!(ran.status.success(), "{}", said(&ran));
            String::from_utf8(ran.stdout).unwrap()
        };
        let text = read(&[0, 1, 2], &[]);
        let sentence = "rank 2 has not called collective 6, which others are in:";
        assert!(text.contains(sentence), "{text}");
        let calls = "rank 0-1: all_reduce [4] Float, under way";
        assert!(text.contains(calls), "{text}");
        if name.starts_with("trace") {
            let place = format!("flight_ranks.py:{line} main");
            assert!(text.contains(&place), "{text}");
        }
        let json: Value = serde_json::from_str(&read(&[0, 2], &["--json"])).unwrap();
        assert_eq!(json["missing_ranks"], serde_json::json!([1]), "{json}");
        assert_eq!(
            json["findings"][0]["what"]["behind"]["ranks"][0], 2,
            "{json}"
        );
    }
}
