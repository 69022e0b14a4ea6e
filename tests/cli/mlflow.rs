//! `report --mlflow` where the server is away, refuses, or is none: an error with a hint, the
//! report all the same, and no password in what is said.

use crate::faults::{Output, TORCHSPY, assert_error, output_of};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recording/v1.tspy")
}

fn report(uri: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(TORCHSPY);
    command
        .arg("report")
        .arg(recording())
        .args(["--mlflow", uri]);
    for name in ["TOKEN", "USERNAME", "PASSWORD"] {
        command.env_remove(format!("MLFLOW_TRACKING_{name}"));
    }
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent");
    output_of(command.envs(variables.iter().copied()))
}

/// A request: its first line, its headers, and its body.
struct Request {
    line: String,
    headers: Vec<String>,
    body: String,
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let length = lines.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(Request {
        line: lines.remove(0),
        headers: lines,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// A server that gives these answers, one to each request, and then the requests.
fn server(answers: Vec<(&'static str, String)>) -> (String, JoinHandle<Vec<Request>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            requests.extend(read(&mut stream));
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
        requests
    });
    (uri, thread)
}

fn is_reported(output: &Output) {
    assert!(
        output.stdout.contains("python train.py"),
        "{}",
        output.stdout
    );
}

#[test]
fn a_server_that_is_away_or_is_none_costs_no_report() {
    let before = std::fs::read(recording()).unwrap();
    // Nobody listens to port 1 (tcpmux, which is no longer used).
    let output = report("http://ann:secret@127.0.0.1:1", &[]);
    assert_error(
        &output,
        "cannot reach MLflow at http://127.0.0.1:1",
        &["the recording is as it was"],
    );
    assert!(!output.stderr.contains("secret"), "{}", output.stderr);
    is_reported(&output);
    let (uri, requests) = server(vec![("200 OK", "<html>a page</html>".to_owned())]);
    let output = report(&uri, &[]);
    assert_error(&output, "not as an MLflow server", &["MLFLOW_TRACKING_URI"]);
    is_reported(&output);
    assert!(
        requests.join().unwrap()[0]
            .line
            .starts_with("GET /api/2.0/mlflow/experiments/get-by-name")
    );
    let moved = "301 Moved Permanently\r\nLocation: https://elsewhere.example".to_owned();
    let (uri, requests) = server(vec![(moved.leak(), String::new())]);
    assert_error(&report(&uri, &[]), "sends elsewhere (301)", &["https://"]);
    requests.join().unwrap();
    assert_eq!(std::fs::read(recording()).unwrap(), before);
}

#[test]
fn who_is_refused_learns_which_variables_there_are() {
    let refusal = r#"{"error_code": "PERMISSION_DENIED", "message": "Permission denied"}"#;
    for (variables, header) in [
        (&[][..], None),
        (&[("MLFLOW_TRACKING_TOKEN", "t0ken")], Some("Bearer t0ken")),
        (
            &[
                ("MLFLOW_TRACKING_TOKEN", "t0ken"),
                ("MLFLOW_TRACKING_USERNAME", "ann"),
                ("MLFLOW_TRACKING_PASSWORD", "pw"),
            ],
            Some("Basic YW5uOnB3"),
        ),
    ] {
        let (uri, requests) = server(vec![("403 Forbidden", refusal.to_owned())]);
        let output = report(&uri, variables);
        assert_error(
            &output,
            "(403): Permission denied",
            &["MLFLOW_TRACKING_TOKEN"],
        );
        is_reported(&output);
        let requests = requests.join().unwrap();
        let found = requests[0].headers.iter().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("authorization").then_some(value)
        });
        assert_eq!(found, header);
    }
}

#[test]
fn a_run_that_cannot_be_completed_is_marked_as_failed() {
    let run = |id: &str| {
        format!(
            r#"{{"run": {{"info": {{"run_id": "{id}", "artifact_uri": "mlflow-artifacts:/7/{id}/artifacts"}}}}}}"#
        )
    };
    let (uri, requests) = server(vec![
        (
            "404 Not Found",
            r#"{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}"#.to_owned(),
        ),
        ("200 OK", r#"{"experiment_id": "7"}"#.to_owned()),
        ("200 OK", run("parent")),
        ("200 OK", run("child")),
        (
            "500 Internal Server Error",
            r#"{"error_code": "INTERNAL_ERROR", "message": "disk full"}"#.to_owned(),
        ),
        ("200 OK", "{}".to_owned()),
        ("200 OK", "{}".to_owned()),
    ]);
    let output = report(
        &uri,
        &[
            ("MLFLOW_EXPERIMENT_NAME", "mine"),
            ("MLFLOW_RUN_NAME", "third"),
        ],
    );
    assert_error(
        &output,
        "refuses runs/log-batch (500): disk full",
        &["logs a new run"],
    );
    let requests = requests.join().unwrap();
    assert!(
        requests[0].line.contains("experiment_name=mine"),
        "{}",
        requests[0].line
    );
    assert!(
        requests[2].body.contains(r#""run_name":"third""#),
        "{}",
        requests[2].body
    );
    assert!(
        requests[3].body.contains(r#""run_name":"worker_3""#),
        "{}",
        requests[3].body
    );
    for (request, id) in requests[5..].iter().zip(["child", "parent"]) {
        assert!(request.line.contains("runs/update"), "{}", request.line);
        assert!(
            request.body.contains("FAILED") && request.body.contains(id),
            "{}",
            request.body
        );
    }
}
