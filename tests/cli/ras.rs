//! `torchspy record`, `agent` and `top` of processes that stand still ask their NCCL, which is
//! stood in for by a server.

use crate::dump_job::{nccl_ras, ranks, status};
use crate::faults::{How, Recorded, Recorder, marked, start_agent, wait_until};
use crate::terminal::Terminal;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn report(recorded: &Recorded) -> String {
    let words = recorded.full_report();
    let words = words.split_whitespace().collect::<Vec<_>>();
    words.join(" ")
}

/// What is recorded so far, as text.
fn inspected(recorder: &Recorder) -> String {
    let mut inspect = Command::new(crate::faults::TORCHSPY);
    let output = inspect.arg("inspect").arg(recorder.path()).output();
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

#[test]
fn a_recording_of_ranks_that_stand_still_has_what_their_nccl_counts() {
    let pids = Arc::new(Mutex::new(Vec::<String>::new()));
    let answered = Arc::new(AtomicUsize::new(0));
    let (known, count) = (pids.clone(), answered.clone());
    let address = nccl_ras(move || {
        count.fetch_add(1, Ordering::SeqCst);
        status(&known.lock().unwrap())
    });
    let variables = [("NCCL_RAS_ADDR", address.as_str())];
    let Some((target, _)) = ranks(3, "recorded", &variables) else {
        return;
    };
    let variables = [variables[0], ("NCCL_RAS_ENABLE", "0")];
    let Some((off, _)) = ranks(1, "recorded-off", &variables) else {
        return;
    };
    pids.lock().unwrap().clone_from(&target.ready);
    // This one would ask before the others do.
    let options = &["--no-ras"];
    let without = Recorder::attach(
        target.pid(),
        How {
            options,
            ..How::default()
        },
    );
    without.wait_for_segment();
    let of_off = Recorder::attach(off.pid(), How::default());
    let recorder = Recorder::attach(target.pid(), How::default());
    wait_until("NCCL is asked", || answered.load(Ordering::SeqCst) > 0);
    let report_of = report(&recorder.interrupt().expect_success());
    let (pid, read) = (&target.ready[2], marked("waiting_ranks.py", "read"));
    for line in [
        format!(
            "RAS NCCL RAS ({address}, NCCL 2.30.7) communicator 0xae94423cfbb2ef4a of 3 ranks: "
        ),
        "rank 2 has launched 1,023 AllReduce, 2 others 1,024".to_owned(),
        format!("rank 2: pid {pid} on 127.0.0.1: at waiting_ranks.py:{read}"),
    ] {
        assert!(report_of.contains(&line), "{line}\n{report_of}");
    }
    let report_of = report(&without.interrupt().expect_success());
    assert!(!report_of.contains("NCCL RAS"), "{report_of}");
    assert_eq!(answered.load(Ordering::SeqCst), 1);
    wait_until("the reason is recorded", || {
        std::thread::sleep(Duration::from_millis(500));
        inspected(&of_off).contains("it is off")
    });
    let report_of = report(&of_off.interrupt().expect_success());
    let why = "RAS NCCL RAS (localhost:28028): it is off (NCCL_RAS_ENABLE=0)";
    assert!(report_of.contains(why), "{report_of}");
}

/// Each rank is sampled by a session of its own, and one of them asks. Its answer is in the ring,
/// with the places of ranks that the others sample.
#[test]
fn an_agent_asks_the_nccl_of_ranks_that_stand_still() {
    let pids = Arc::new(Mutex::new(Vec::<String>::new()));
    let answered = Arc::new(AtomicUsize::new(0));
    let (known, count) = (pids.clone(), answered.clone());
    let address = nccl_ras(move || {
        count.fetch_add(1, Ordering::SeqCst);
        status(&known.lock().unwrap())
    });
    let variables = [("NCCL_RAS_ADDR", address.as_str())];
    let Some((target, job)) = ranks(3, "agent-ras", &variables) else {
        return;
    };
    let variables = [variables[0], ("NCCL_RAS_ENABLE", "0")];
    let Some((_off, off_job)) = ranks(1, "agent-ras-off", &variables) else {
        return;
    };
    pids.lock().unwrap().clone_from(&target.ready);
    let folder = tempfile::tempdir().unwrap();
    let start = |job: &str, ring: &str, options: &[&str]| {
        let ring = folder.path().join(ring);
        let options = [options, &["--ring", ring.to_str().unwrap()]].concat();
        let log = tempfile::NamedTempFile::new().unwrap();
        let errors = log.reopen().unwrap();
        let (child, _) = start_agent(job, &options, |command| {
            command.stderr(errors);
        });
        (child, log)
    };
    let quiet = start(&job, "quiet", &["--no-ras"]);
    let agents = [start(&off_job, "off", &[]), start(&job, "asks", &[])];
    let said = |log: &tempfile::NamedTempFile| std::fs::read_to_string(log.path()).unwrap();
    let off = "NCCL RAS (localhost:28028): it is off (NCCL_RAS_ENABLE=0)";
    wait_until("both agents have printed an answer", || {
        std::thread::sleep(Duration::from_millis(100));
        said(&agents[0].1).contains(off) && said(&agents[1].1).contains("1,024")
    });
    let log = said(&agents[1].1);
    let counts = "rank 2 has launched 1,023 AllReduce, 2 others 1,024";
    assert!(log.contains(counts), "{log}");
    let [first, second] = agents;
    for (mut child, log) in [quiet, first, second] {
        let own = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success(), "{}", said(&log));
    }
    assert_eq!(answered.load(Ordering::SeqCst), 1);
    let mut report = Command::new(crate::faults::TORCHSPY);
    let report = report
        .arg("report")
        .arg(folder.path().join("asks"))
        .output();
    let report = String::from_utf8(report.unwrap().stdout).unwrap();
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pid, read) = (&target.ready[2], marked("waiting_ranks.py", "read"));
    for line in [
        counts.to_owned(),
        format!("rank 2: pid {pid} on 127.0.0.1: at waiting_ranks.py:{read}"),
    ] {
        assert!(report.contains(&line), "{line}\n{report}");
    }
}

#[test]
fn top_asks_the_nccl_of_a_rank_that_stands_still() {
    let pids = Arc::new(Mutex::new(Vec::<String>::new()));
    let known = pids.clone();
    let address = nccl_ras(move || status(&known.lock().unwrap()));
    let Some((target, _)) = ranks(3, "top-ras", &[("NCCL_RAS_ADDR", address.as_str())]) else {
        return;
    };
    pids.lock().unwrap().clone_from(&target.ready);
    let folder = tempfile::tempdir().unwrap();
    let command = format!("top --pid {}", target.ready[2]);
    let Some(mut terminal) = Terminal::start(folder.path(), &command) else {
        return;
    };
    // Words that are not broken into two lines.
    terminal.wait_for(&format!("({address},"));
    terminal.wait_for("1,023");
    terminal.press(b"q");
    let (code, screen) = terminal.end();
    assert_eq!(code, Some(0), "{screen:?}");
}
