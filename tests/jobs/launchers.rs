//! Ranks that train with torch under launchers other than torchrun: Open MPI, and Ray.

use crate::faults::{STEADY, TORCHSPY, Target, program, start_agent, wait_until};
use crate::installed::{debian, frameworks_python, torch_python};
use crate::job::said;
use crate::torchspy;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A port that was free.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// What `report --json` has of the recordings below a folder.
fn report(folder: &Path) -> Value {
    let ran = torchspy().arg("report").arg(folder).arg("--json").output();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn gloo_ranks_under_open_mpi_are_one_job() {
    let (Some(mpirun), Some(python)) = (debian("mpirun.openmpi", "openmpi-bin"), torch_python())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("{job}/{host}-{rank}.tspy");
    let ran = Command::new(mpirun)
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
        .args([TORCHSPY, "record"])
        .args(STEADY)
        .arg("-o")
        .arg(pattern)
        .arg("--")
        .arg(python)
        .args([&program("ddp_gloo.py"), "--steps", "120"])
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    let found = report(folder.path());
    assert_eq!(found["world_size"], 4, "{found}");
    assert_eq!(found["missing_ranks"], serde_json::json!([]), "{found}");
    assert_eq!(found["left_out"], serde_json::json!([]), "{found}");
    let ranks = found["ranks"].as_array().unwrap();
    let numbers = ranks.iter().map(|rank| rank["rank"].as_u64().unwrap());
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 2, 3]);
    for rank in ranks {
        let steps = rank["steps"].as_u64().unwrap();
        assert!((96..=120).contains(&steps), "{rank}");
    }
}

/// Killed when this is dropped.
struct Agent(Child, String);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ray starts workers before it has a job for them, and ranks are set in them later: neither is in
/// what they were started with.
#[test]
fn ranks_that_ray_starts_are_found_with_their_numbers() {
    let Some(python) = frameworks_python() else {
        return;
    };
    let job = format!("ray-{}", std::process::id());
    let mut command = Command::new(python);
    command.args([&program("ray_ranks.py"), "actors", "2"]);
    let mut target = Target::spawn(command.env("TORCHSPY_JOB", &job));
    target.ready = target.expect("ready");

    let agent = start_agent(&job, &[], |_| ());
    let agent = Agent(agent.0, agent.1);

    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("{job}/{rank}.tspy");
    let recorders = target.ready.iter().map(|pid| {
        let mut command = torchspy();
        command.args(["record", "--duration", "3s", "--pid", pid]);
        command.stderr(Stdio::null()).arg("-o").arg(&pattern);
        command.spawn().unwrap()
    });
    for mut recorder in recorders.collect::<Vec<_>>() {
        assert!(recorder.wait().unwrap().success());
    }
    for rank in ["0", "1"] {
        let path = folder.path().join(&job).join(format!("{rank}.tspy"));
        assert!(path.exists(), "{}", path.display());
    }
    let found = report(folder.path());
    assert_eq!(found["world_size"], 2, "{found}");
    assert_eq!(found["left_out"], serde_json::json!([]), "{found}");
    let ranks = found["ranks"].as_array().unwrap().iter();
    let pids = ranks.map(|rank| rank["pid"].to_string());
    assert_eq!(pids.collect::<Vec<_>>(), target.ready);

    let dump = ["dump", "--all-trainers", "--job", &job];
    let ran = torchspy().args(dump).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    let text = said(&ran);
    for (rank, pid) in target.ready.iter().enumerate() {
        assert!(text.contains(&format!("rank {rank} pid {pid}: ")), "{text}");
    }

    wait_until("series of both ranks", || {
        let (_, series) = crate::faults::get(&agent.1, "/metrics");
        let has = |rank: u32| {
            let labels = format!("job=\"{job}\",rank=\"{rank}\"}}");
            let steps = series.lines();
            let mut steps = steps.filter(|line| line.starts_with("torchspy_steps_total{"));
            steps.any(|line| line.contains(&labels))
        };
        has(0) && has(1)
    });
}
