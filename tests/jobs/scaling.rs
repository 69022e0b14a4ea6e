//! The same training on 1, 2 and 4 real ranks: how it scales, and what MLflow is told of it.

use crate::faults::program;
use crate::installed::{mlflow, torch_python};
use crate::job::said;
use crate::{STEADY, torchspy};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Records each rank of a training of a few epochs, whose samples the ranks share.
fn record(python: &Path, folder: &Path, ranks: usize) {
    let pattern = folder.join("{rank}.tspy").display().to_string();
    let ran = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone"])
        .args(["--nproc-per-node", &ranks.to_string(), "--no-python"])
        .args([env!("CARGO_BIN_EXE_torchspy"), "record"])
        .args(STEADY)
        .args(["-o", &pattern, "--"])
        .arg(python)
        .args([
            &program("ddp_gloo.py"),
            "--epochs",
            "4",
            "--samples",
            "8192",
        ])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
}

fn scaling(folder: &Path, options: &[&str]) -> String {
    let ran = torchspy()
        .arg("scaling")
        .args(["1", "2", "4"])
        .args(options)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn jobs_of_several_sizes_are_compared_and_logged() {
    let Some(python) = torch_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for ranks in [1, 2, 4] {
        record(&python, &folder.join(ranks.to_string()), ranks);
    }
    let text = scaling(folder, &["-o", "scaling.html", "--per", "step"]);
    let json: Value = serde_json::from_str(&scaling(folder, &["--json", "--per", "step"])).unwrap();
    assert_eq!(
        (&json["unit"], &json["work"]),
        (&"step".into(), &"samples".into()),
        "{text}"
    );
    let points = json["points"].as_array().unwrap();
    for (point, ranks) in points.iter().zip([1_u64, 2, 4]) {
        assert_eq!(
            (&point["strategy"], &point["ranks"]),
            (&"DDP".into(), &ranks.into()),
            "{text}"
        );
        assert_eq!(point["recorded"], ranks, "{text}");
        assert_eq!(point["samples_a_step"], 64.0 * ranks as f64, "{text}");
        let of = |key: &str| {
            let part = &point[key];
            let end = |end: &str| part[end].as_f64().unwrap();
            assert!(
                end("low") <= end("value") && end("value") <= end("high"),
                "{key}: {text}"
            );
            end("value")
        };
        assert!(of("time_s") > 0.0 && of("computation") > 0.0 && of("communication") >= 0.0);
        // A CPU has no energy of a GPU.
        assert!(point["energy_wh"].is_null() && point["gpu_utilization"].is_null());
    }
    assert_eq!(points.len(), 3, "{text}");
    let share = |at: usize| points[at]["communication"]["value"].as_f64().unwrap();
    assert!(share(1) > share(0) && share(2) > share(0), "{text}");
    assert!(
        text.contains("samples of the data set per second"),
        "{text}"
    );
    let page = fs::read_to_string(folder.join("scaling.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("Speed-up"));
    assert_eq!(scaling(folder, &["--csv", "points"]).lines().count(), 4);

    if let Some(mlflow) = mlflow() {
        logged(&mlflow, folder);
    }
}

/// A server, which ends with this.
struct Server {
    child: Child,
    uri: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// MLflow with its SQLite store, on a port that the kernel chooses.
fn serve(mlflow: &Path, folder: &Path) -> Server {
    let store = format!("sqlite:///{}", folder.join("mlflow.db").display());
    let mut child = Command::new(mlflow)
        .args(["server", "--backend-store-uri", &store])
        .arg("--artifacts-destination")
        .arg(folder.join("artifacts"))
        .args(["--host", "127.0.0.1", "--port", "0", "--workers", "1"])
        .env("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        .env("MLFLOW_DISABLE_TELEMETRY", "true")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap());
    let mut server = Server {
        child,
        uri: String::new(),
    };
    let mut seen = String::new();
    let mut lines = lines.lines().map_while(Result::ok);
    for line in lines.by_ref() {
        if let Some((_, rest)) = line.split_once("Uvicorn running on ") {
            rest.split(' ').next().unwrap().clone_into(&mut server.uri);
            break;
        }
        seen.push_str(&line);
        seen.push('\n');
    }
    assert!(!server.uri.is_empty(), "{seen}");
    // A full pipe would hold it up.
    std::thread::spawn(move || lines.for_each(drop));
    server
}

fn logged(mlflow: &Path, folder: &Path) {
    let server = serve(mlflow, folder);
    for (what, options) in [("2", &[][..]), ("1/0.tspy", &["--mlflow-run", "alone"])] {
        let ran = torchspy()
            .args([
                "report",
                what,
                "--mlflow",
                &server.uri,
                "--mlflow-experiment",
                "tests",
            ])
            .args(options)
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", said(&ran));
    }
    let ran = Command::new(mlflow.with_file_name("python"))
        .args([&program("read_mlflow.py"), &server.uri, "tests"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    let runs: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(runs.len(), 5, "{runs:#?}");
    assert!(
        runs.iter().all(|run| run["status"] == "FINISHED"),
        "{runs:#?}"
    );
    let named = |name: &str, parent: &Value| {
        let mut found = runs
            .iter()
            .filter(|run| run["name"] == name && run["parent"] == *parent);
        found.next().unwrap_or_else(|| panic!("{name}: {runs:#?}"))
    };
    let job = named("2", &Value::Null);
    assert!(
        job["params"].as_object().unwrap().is_empty()
            && job["metrics"].as_object().unwrap().is_empty()
    );
    assert!(job["artifacts"]["torchspy/2.html"].as_u64().unwrap() > 10_000);
    for (rank, name) in ["worker_0 (main)", "worker_1"].into_iter().enumerate() {
        let worker = named(name, &job["id"]);
        let params = serde_json::json!({
            "strategy": "torch-ddp",
            "global_rank": rank.to_string(),
            "global_world_size": "2",
        });
        assert_eq!(worker["params"], params, "{worker:#?}");
        let file = format!("{rank}.tspy");
        let length = fs::metadata(folder.join("2").join(&file)).unwrap().len();
        assert_eq!(
            worker["artifacts"][format!("torchspy/{file}")],
            length,
            "{worker:#?}"
        );
        // No GPU, and no figure of one; epochs of the main worker alone.
        let metrics = worker["metrics"].as_object().unwrap();
        let keys: Vec<&String> = metrics.keys().collect();
        match rank {
            0 => assert_eq!(keys, ["epoch_time_s"]),
            _ => assert!(keys.is_empty()),
        }
    }
    let epochs = named("worker_0 (main)", &job["id"]);
    let seconds = epochs["seconds"].as_f64().unwrap();
    let epochs = epochs["metrics"]["epoch_time_s"].as_array().unwrap();
    let number = |at: usize, field: usize| epochs[at][field].as_f64().unwrap();
    assert!((1..=4).contains(&epochs.len()), "{epochs:?}");
    let sum: f64 = (0..epochs.len()).map(|at| number(at, 2)).sum();
    assert!(sum > 0.0 && sum <= seconds + 0.1, "{epochs:?} in {seconds}");
    for at in 1..epochs.len() {
        assert!(number(at, 0) == number(at - 1, 0) + 1.0 && number(at, 1) > number(at - 1, 1));
    }
    let alone = named("alone", &Value::Null);
    assert!(alone["artifacts"]["torchspy/0.html"].as_u64().unwrap() > 100_000);
    named("worker_0 (main)", &alone["id"]);
}
