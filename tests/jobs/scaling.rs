//! The same training on 1, 2 and 4 real ranks: how it scales, and what MLflow is told of it.

use crate::faults::program;
use crate::installed::{itwinai, mlflow, torch_python};
use crate::job::said;
use crate::{STEADY, torchspy};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Gives a rank a library that is called as CUDA's, and the device of its number.
const ON_GPU: &str = "export LD_PRELOAD=$0 CUDA_VISIBLE_DEVICES=$LOCAL_RANK; exec \"$@\"";

/// Two GPUs by the double of NVML: 160 kW and 30 % of utilization, 220 kW and 60 %. A report with
/// two decimals of Wh has enough digits then. As in a container, the driver lists a pid that is
/// not there.
struct Gpus {
    library: PathBuf,
    cuda: PathBuf,
    scenario: PathBuf,
}

impl Gpus {
    const WATTS: [f64; 2] = [160e3, 220e3];

    fn new(folder: &Path) -> Self {
        let own = std::env::current_exe().unwrap();
        let library = own.parent().unwrap().join("libnvml_double.so");
        let cuda = folder.join("libcuda.so.1");
        fs::copy(&library, &cuda).unwrap();
        let gpus = [("GPU-0", 150), ("GPU-1", 300)].map(|(uuid, busy_ms)| {
            json!({
                "uuid": uuid, "power_idle_mw": 100_000_000, "power_busy_mw": 300_000_000,
                "activity": {"square": {"period_ms": 500, "busy_ms": busy_ms}},
                "processes": [{"pid": 4_194_400, "memory": 1 << 30}],
            })
        });
        let scenario = folder.join("scenario.json");
        fs::write(&scenario, json!({"gpus": gpus}).to_string()).unwrap();
        Self {
            library,
            cuda,
            scenario,
        }
    }
}

/// Records each rank of a training of a few epochs, whose samples the ranks share.
fn record(python: &Path, folder: &Path, ranks: usize, gpus: Option<&Gpus>) {
    let pattern = folder.join("{rank}.tspy").display().to_string();
    let mut command = Command::new(python);
    command
        .args(["-m", "torch.distributed.run", "--standalone"])
        .args(["--nproc-per-node", &ranks.to_string(), "--no-python"])
        .args([env!("CARGO_BIN_EXE_torchspy"), "record"])
        .args(STEADY)
        .args(["-o", &pattern]);
    if let Some(gpus) = gpus {
        command
            .env("TORCHSPY_NVML_SCENARIO", &gpus.scenario)
            .arg("--nvml-lib")
            .arg(&gpus.library)
            .args(["--", "sh", "-c", ON_GPU])
            .arg(&gpus.cuda);
    } else {
        command.arg("--");
    }
    let ran = command
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

fn scaling(folder: &Path, runs: &[&str], options: &[&str]) -> String {
    let ran = torchspy()
        .arg("scaling")
        .args(runs)
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
        record(&python, &folder.join(ranks.to_string()), ranks, None);
    }
    let scaling = |options: &[&str]| scaling(folder, &["1", "2", "4"], options);
    let text = scaling(&["-o", "scaling.html", "--per", "step"]);
    let json: Value = serde_json::from_str(&scaling(&["--json", "--per", "step"])).unwrap();
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
    assert_eq!(scaling(&["--csv", "points"]).lines().count(), 4);

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

fn log(server: &Server, folder: &Path, what: &str, options: &[&str]) {
    let to = ["--mlflow", &server.uri, "--mlflow-experiment", "tests"];
    report(folder, what, &[&to[..], options].concat());
}

fn report(folder: &Path, what: &str, options: &[&str]) -> Vec<u8> {
    let mut command = torchspy();
    command.args(["report", what]).args(options);
    let ran = command.current_dir(folder).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    ran.stdout
}

/// The runs that the store has.
fn stored(mlflow: &Path, server: &Server) -> Vec<Value> {
    let ran = Command::new(mlflow.with_file_name("python"))
        .args([&program("read_mlflow.py"), &server.uri, "tests"])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn logged(mlflow: &Path, folder: &Path) {
    let server = serve(mlflow, folder);
    for (what, options) in [("2", &[][..]), ("1/0.tspy", &["--mlflow-run", "alone"])] {
        log(&server, folder, what, options);
    }
    let runs = stored(mlflow, &server);
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

/// The rows of a table of itwinai's report: their numbers.
fn rows(text: &str, table: &str) -> Vec<Vec<f64>> {
    let title = format!("######## {table} Report ########");
    let lines = text.lines().skip_while(|line| *line != title).skip(2);
    let rows = lines.take_while(|line| !line.trim().is_empty());
    rows.map(|line| {
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("torch-ddp"), "{text}");
        words.filter_map(|word| word.parse().ok()).collect()
    })
    .collect()
}

/// The sum of a metric of all ranks of a run.
fn sum_of(runs: &[Value], name: &str, metric: &str) -> f64 {
    let job = runs.iter().find(|run| run["name"] == name).unwrap();
    let ranks = runs.iter().filter(|run| run["parent"] == job["id"]);
    let points = ranks.flat_map(|rank| rank["metrics"][metric].as_array().into_iter().flatten());
    points.map(|point| point[2].as_f64().unwrap()).sum()
}

#[test]
fn itwinai_reports_what_was_logged() {
    let (Some(python), Some(mlflow), Some(itwinai)) = (torch_python(), mlflow(), itwinai()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gpus = Gpus::new(folder);
    let server = serve(&mlflow, folder);
    for ranks in [1, 2] {
        let name = ranks.to_string();
        record(&python, &folder.join(&name), ranks, Some(&gpus));
        log(&server, folder, &name, &[]);
    }
    let runs = stored(&mlflow, &server);
    let ours: Value =
        serde_json::from_str(&scaling(folder, &["1", "2"], &["--json", "--per", "epoch"])).unwrap();
    let ran = Command::new(itwinai)
        .args(["generate-scalability-report", "--no-warnings"])
        .args(["--tracking-uri", &server.uri, "--experiment-name", "tests"])
        .env("MLFLOW_DISABLE_TELEMETRY", "true")
        .current_dir(folder)
        .output()
        .unwrap();
    let told = said(&ran);
    assert!(ran.status.success(), "{told}");
    let text = String::from_utf8(ran.stdout).unwrap();
    let (epochs, devices) = (rows(&text, "Epoch Time"), rows(&text, "GPU Data"));
    assert_eq!((epochs.len(), devices.len()), (2, 2), "{told}");
    for (at, ranks) in [1_usize, 2].into_iter().enumerate() {
        let name = ranks.to_string();
        let [of, time_s] = epochs[at][..] else {
            panic!("{told}")
        };
        assert_eq!(of, ranks as f64, "{told}");
        // itwinai averages all epochs, the first one, too; it prints two decimals.
        let first = report(folder, &format!("{name}/0.tspy"), &["--json"]);
        let first: Value = serde_json::from_slice(&first).unwrap();
        let each = first["progress"]["epoch_s"].as_array().unwrap();
        let sum: f64 = each.iter().map(|each| each.as_f64().unwrap()).sum();
        let mean_s = sum / each.len() as f64;
        assert!((time_s - mean_s).abs() < 0.006, "{mean_s}: {told}");
        let [of, energy_wh, utilization] = devices[at][..] else {
            panic!("{told}")
        };
        assert_eq!(of, ranks as f64, "{told}");
        let stored_wh = sum_of(&runs, &name, "gpu_power_W") / 3600.0;
        assert!((energy_wh - stored_wh).abs() < 0.006, "{stored_wh}: {told}");
        // Only whole seconds are logged: less than one is left out at either end. The power is a
        // square wave with a period of a second, and a part of it is not its mean.
        let own = &ours["points"][at];
        let own_wh = own["energy_wh"]["value"].as_f64().unwrap();
        let watts: f64 = Gpus::WATTS[..ranks].iter().sum();
        let left_out_s = (own_wh - energy_wh) * 3600.0 / watts;
        assert!((-0.3..2.3).contains(&left_out_s), "{own}: {told}");
        let truth = [30.0, 45.0][at];
        let own = own["gpu_utilization"]["value"].as_f64().unwrap() * 100.0;
        assert!((utilization - truth).abs() < 3.0, "{told}");
        assert!((utilization - own).abs() < 3.0, "{own}: {told}");
    }
    assert!(text.contains("No Computation Data Found"), "{told}");
    for plot in [
        "absolute_epoch_time",
        "relative_epoch_time_speedup",
        "gpu_energy_plot",
        "utilization_plot",
    ] {
        let plot = folder.join(format!("plots/{plot}.png"));
        assert!(fs::metadata(&plot).unwrap().len() > 1000, "{plot:?}");
    }
}
