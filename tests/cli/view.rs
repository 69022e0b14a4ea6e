//! `view`: what it answers, and to whom.

use crate::faults::{
    How, Recorder, TORCHSPY, Target, any_python, assert_error, program, run, wait_until,
};
use crate::snapshot::head_of_page;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `torchspy view`, killed when this is dropped.
struct View {
    child: Child,
    /// `127.0.0.1:PORT`.
    host: String,
    /// `/TOKEN/`.
    root: String,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl View {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(TORCHSPY)
            .arg("view")
            .arg(path)
            .arg("--no-open")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("http://").unwrap();
        let (host, root) = address.split_once('/').unwrap();
        assert!(host.starts_with("127.0.0.1:"), "{line}");
        Self {
            child,
            host: host.to_owned(),
            root: format!("/{root}"),
        }
    }

    /// Sends one request as it is given, and reads all of the answer.
    fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn request(&self, method: &str, path: &str, host: &str) -> Answer {
        self.ask(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ))
    }

    /// A path below the token.
    fn get(&self, path: &str) -> Answer {
        self.request("GET", &format!("{}{path}", self.root), &self.host)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording/v1.tspy")
}

/// A folder with two recordings, a corrupt one, and what must not be reached.
fn runs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    fs::create_dir(&runs).unwrap();
    fs::copy(fixture(), folder.path().join("outside.tspy")).unwrap();
    fs::copy(fixture(), runs.join("good.tspy")).unwrap();
    fs::copy(fixture(), runs.join("<i>&'\" %2e.tspy")).unwrap();
    fs::write(runs.join("corrupt.tspy"), "TORCHSPYxx").unwrap();
    fs::write(runs.join("empty.tspy"), "").unwrap();
    std::os::unix::fs::symlink("../outside.tspy", runs.join("link.tspy")).unwrap();
    folder
}

#[test]
fn nobody_gets_in_without_the_token_or_by_another_name() {
    let folder = runs();
    let view = View::start(&folder.path().join("runs"));
    assert_eq!(view.get("").status, 200);
    assert_eq!(view.get("page/good.tspy").status, 200);
    assert!(view.root.len() > 32, "{}", view.root);
    let wrong = format!("/{}/", "0".repeat(view.root.len() - 2));
    for path in [
        "/",
        "/page/good.tspy",
        &wrong,
        &format!("{wrong}page/good.tspy"),
        "/favicon.ico",
    ] {
        let answer = view.request("GET", path, &view.host);
        assert_eq!(answer.status, 403, "{path}");
        assert!(!answer.body.contains("good"), "{}", answer.body);
    }
    for host in [
        "example.org",
        "rebound.example.org:80",
        "127.0.0.1.example.org",
        "",
    ] {
        assert_eq!(view.request("GET", &view.root, host).status, 403, "{host}");
    }
    let without = format!("GET {} HTTP/1.0\r\n\r\n", view.root);
    assert_eq!(view.ask(&without).status, 403);
    // One that ssh has forwarded.
    assert_eq!(
        view.request("GET", &view.root, "localhost:9999").status,
        200
    );
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        assert_eq!(
            view.request(method, &view.root, &view.host).status,
            405,
            "{method}"
        );
    }
    // Nothing else listens: the other loopback addresses of this machine have no such port.
    let port = view.host.rsplit(':').next().unwrap();
    assert!(TcpStream::connect(format!("127.0.0.2:{port}")).is_err());
}

#[test]
fn nothing_outside_of_the_folder_is_reached() {
    let folder = runs();
    let view = View::start(&folder.path().join("runs"));
    for name in [
        "../outside.tspy",
        "..%2foutside.tspy",
        "%2e%2e%2foutside.tspy",
        "..%252foutside.tspy",
        "link.tspy",
        "%2fetc%2fpasswd",
        "none.tspy",
        "",
    ] {
        for kind in ["run", "page", "row", "state"] {
            let answer = view.get(&format!("{kind}/{name}"));
            assert!(
                matches!(answer.status, 403 | 404 | 422),
                "{kind}/{name}: {}",
                answer.status
            );
            assert!(!answer.body.contains("H4sI"), "{kind}/{name}");
        }
    }
    assert_eq!(view.get("none.js").status, 404);
}

#[test]
fn the_list_has_every_recording_and_bad_ones_with_their_error() {
    let folder = runs();
    let view = View::start(&folder.path().join("runs"));
    let list = view.get("");
    assert!(list.head.contains("default-src 'none'"), "{}", list.head);
    assert!(
        list.body
            .contains("<a href=\"run/good.tspy\">good.tspy</a>"),
        "{}",
        list.body
    );
    assert!(list.body.contains("4 recordings"), "{}", list.body);
    for error in ["its header is cut or damaged", "it is empty"] {
        assert!(list.body.contains(error), "{}", list.body);
    }
    assert!(!list.body.contains("outside") && !list.body.contains("link.tspy"));
    // A name of markup is text, and its address works.
    assert!(!list.body.contains("<i>"), "{}", list.body);
    let address = "%3Ci%3E%26%27%22%20%252e.tspy";
    assert!(
        list.body.contains(&format!("href=\"run/{address}\"")),
        "{}",
        list.body
    );
    let shell = view.get(&format!("run/{address}"));
    assert_eq!(shell.status, 200);
    assert!(!shell.body.contains("<i>"), "{}", shell.body);
    assert_eq!(view.get(&format!("page/{address}")).status, 200);
    let row: Value = serde_json::from_str(&view.get("row/good.tspy").body).unwrap();
    let report = run(&["report", "--json", &fixture().to_string_lossy()]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(row["duration_s"], report["duration_s"], "{row}");
    assert_eq!(row["growing"], false);
    let bad = view.get("row/corrupt.tspy");
    assert_eq!(bad.status, 422);
    assert!(
        bad.body.contains("error: ") && bad.body.contains("hint: "),
        "{}",
        bad.body
    );
    for asset in ["view.css", "list.js", "run.js"] {
        assert_eq!(view.get(asset).status, 200, "{asset}");
    }
    // All as one job: the links' targets are no part of it, and what cannot be read is named.
    assert!(list.body.contains("<a href=\"job\">"), "{}", list.body);
    let job = view.get("job");
    assert_eq!(job.status, 200, "{}", job.body);
    assert!(job.body.contains("corrupt.tspy"), "{}", job.body);
    assert!(!job.body.contains("link.tspy") && !job.body.contains("outside.tspy"));
    // Of a single file only that is served.
    let view = View::start(&folder.path().join("runs/good.tspy"));
    let moved = view.get("");
    assert_eq!(moved.status, 302);
    assert!(
        moved
            .head
            .contains(&format!("location: {}run/good.tspy", view.root)),
        "{}",
        moved.head
    );
    assert_eq!(view.get("page/corrupt.tspy").status, 404);
}

#[test]
fn pages_are_those_of_convert_and_report() {
    let folder = runs();
    let view = View::start(&folder.path().join("runs"));
    let file = fixture();
    let file = file.to_str().unwrap();
    let printed = |words: &[&str]| {
        let output = run(words);
        assert!(output.status.success(), "{}", output.stderr);
        output.stdout
    };
    let whole = printed(&["convert", file, "-o", "-", "-f", "html"]);
    assert!(view.get("page/good.tspy").body == whole);
    let length = head_of_page(&whole)["length_us"].as_f64().unwrap() / 1e6;
    let (from, to) = (
        format!("{:.3}", length * 0.25),
        format!("{:.3}", length * 0.75),
    );
    let part = printed(&["report", file, "--html", "--from", &from, "--to", &to]);
    let answer = view.get(&format!("page/good.tspy?v=1&from={from}&to={to}"));
    assert!(answer.body == part);
    assert_eq!(head_of_page(&answer.body)["part"], true);
    // What is kept is still the whole.
    assert!(view.get("page/good.tspy").body == whole);
    for query in ["from=2&to=1", "from=x", "from=100000&to=100001"] {
        let answer = view.get(&format!("page/good.tspy?{query}"));
        assert_eq!(answer.status, 422, "{query}");
        assert!(answer.body.starts_with("error: "), "{}", answer.body);
    }
}

#[test]
fn a_recording_that_grows_is_read_again() {
    let Some(python) = any_python() else { return };
    let target = Target::start(&[&*python, &*program("options.py")]);
    let recorder = Recorder::attach(target.pid(), How::default());
    recorder.wait_for_segment();
    let view = View::start(recorder.folder.path());
    let state = || -> Value { serde_json::from_str(&view.get("state/run.tspy").body).unwrap() };
    let page = || head_of_page(&view.get("page/run.tspy").body);
    let (before, first) = (state(), page());
    assert_eq!(before["growing"], true);
    assert_eq!(first["verdict"][0][0], "SO FAR");
    assert!(view.get("").body.contains("class=\"growing\""));
    wait_until("a change", || state()["stamp"] != before["stamp"]);
    recorder.wait_for_segment();
    assert!(page()["length_us"].as_u64() > first["length_us"].as_u64());
    let recorded = recorder.interrupt().expect_success();
    assert_eq!(state()["growing"], false);
    assert_ne!(page()["verdict"][0][0], "SO FAR");
    drop(recorded);
    assert_eq!(view.get("state/run.tspy").status, 404);
}

/// Pictures are left in target/tmp for a look.
#[test]
fn a_browser_shows_the_list_a_recording_that_grows_and_an_interval() {
    let Some(python) = any_python() else { return };
    let target = Target::start(&[&*python, &*program("options.py")]);
    let recorder = Recorder::attach(target.pid(), How::default());
    recorder.wait_for_segment();
    fs::write(recorder.folder.path().join("corrupt.tspy"), "TORCHSPYxx").unwrap();
    let view = View::start(recorder.folder.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-view");
    let output = Command::new(script)
        .arg(format!("http://{}{}", view.host, view.root))
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(77) => println!("{said}"),
        code => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(code, Some(0), "{said}{errors}");
        }
    }
    recorder.interrupt().expect_success();
}

#[test]
fn ctrl_c_ends_it() {
    let folder = runs();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut view = View::start(folder.path());
        kill(Pid::from_raw(view.child.id() as i32), signal).unwrap();
        assert_eq!(view.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn what_cannot_be_served_has_a_cause_and_a_hint() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let file = fixture();
    let file = file.to_str().unwrap();
    assert_error(
        &run(&["view", file, "--port", &port]),
        "cannot listen",
        &["--port"],
    );
    assert_error(&run(&["view", "no/where"]), "cannot open", &[".tspy"]);
    assert_error(
        &run(&["view", &program("options.py")]),
        "is no recording",
        &[".tspy"],
    );
}
