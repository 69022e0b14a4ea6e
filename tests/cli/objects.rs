//! Recordings in object storage, on servers of this machine that fail as they are asked to.

use crate::faults::{Output, TORCHSPY, Target, any_python, assert_error, output_of, program};
use crate::installed::{azurite, objects_python};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Azurite's account and key
/// (<https://learn.microsoft.com/azure/storage/common/storage-connect-azurite>).
const AZURITE: (&str, &str) = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);

/// The server with a bucket, and a user's folders.
struct Store {
    /// Ends with its standard input.
    _server: Target,
    address: String,
    home: TempDir,
}

impl Store {
    fn start() -> Option<Self> {
        let python = objects_python()?;
        Some(Self::of(
            Command::new(python).args([&program("s3_server.py"), "runs"]),
        ))
    }

    fn of(server: &mut Command) -> Self {
        let mut server = Target::spawn(server);
        Self {
            address: server.line(),
            _server: server,
            home: tempfile::tempdir().unwrap(),
        }
    }

    /// The server is S3's, Google's and Azure's: one of them answers.
    fn variables(&self) -> [(&'static str, String); 10] {
        let address = &self.address;
        let google = serde_json::json!({
            "gcs_base_url": address, "disable_oauth": true,
            "client_email": "", "private_key": "", "private_key_id": ""
        });
        let (account, key) = AZURITE;
        [
            ("AWS_ENDPOINT_URL", address.clone()),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", "key".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", google.to_string()),
            ("AZURE_STORAGE_ACCOUNT_NAME", account.into()),
            ("AZURE_STORAGE_ACCOUNT_KEY", key.into()),
            ("AZURE_STORAGE_ENDPOINT", format!("{address}/{account}")),
            ("AZURE_ALLOW_HTTP", "true".into()),
        ]
    }

    /// `torchspy` with these arguments.
    fn torchspy(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TORCHSPY);
        command
            .args(arguments)
            .current_dir(self.home.path())
            .envs(self.variables())
            .env("TORCHSPY_JOB", "j7")
            .env("XDG_STATE_HOME", self.home.path().join("state"))
            .env("XDG_CACHE_HOME", self.home.path().join("cache"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        output_of(&mut self.torchspy(arguments))
    }

    /// Records a short program to an address.
    fn record(&self, to: &str, options: &[&str]) -> Output {
        let record = ["record", "-o", to];
        let short = ["--", "sleep", "0.3"];
        self.run(&[&record, options, &short].concat())
    }

    fn spool(&self) -> PathBuf {
        self.home.path().join("state/torchspy/spool")
    }

    /// Names in the spool.
    fn spooled(&self) -> Vec<String> {
        let entries = fs::read_dir(self.spool()).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }

    /// Puts a recording of these bytes into the spool, as a torchspy that was killed leaves it.
    fn leave(&self, name: &str, bytes: &[u8], to: &str) {
        fs::create_dir_all(self.spool()).unwrap();
        let line = serde_json::json!({
            "to": to, "force": false, "placed": null, "upload": null
        });
        let path = self.spool().join(name);
        fs::write(path.with_extension("tspy"), bytes).unwrap();
        fs::write(path.with_extension("send"), format!("{line}\n{{\"to\": ")).unwrap();
    }

    fn ask(&self, method: &str, path: &str, body: &[u8]) -> String {
        let host = self.address.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: AWS4-HMAC-SHA256 \
             Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn fail(&self, shares: &str) {
        self.ask("POST", &format!("/_faults?{shares}"), b"");
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.ask("GET", "/_state", b"")).unwrap()
    }

    fn requests(&self, kind: &str) -> u64 {
        self.state()["requests"][kind].as_u64().unwrap_or(0)
    }

    /// Length and SHA-256 of an object.
    fn object(&self, key: &str) -> Value {
        self.state()["objects"][key].clone()
    }

    fn keys(&self) -> Vec<String> {
        let state = self.state();
        let objects = state["objects"].as_object().unwrap();
        objects.keys().cloned().collect()
    }
}

fn facts(bytes: &[u8]) -> Value {
    let hash: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    serde_json::json!([bytes.len(), hash])
}

/// Bytes of no regularity, of which a recording in three parts is made.
fn many_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        // A linear congruential generator: Knuth's MMIX.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..17_000_001).map(|_| next()).collect()
}

fn expect_success(output: &Output) {
    assert!(output.status.success(), "{}", output.stderr);
}

fn expect(output: &Output, parts: &[&str]) {
    for part in parts {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
}

#[test]
fn a_job_is_sent_and_read_back_and_no_object_is_replaced() {
    let Some(store) = Store::start() else { return };
    sends_and_reads(&store, "s3");
    let asked = store.requests("GET");
    let report = store.run(&["report", "s3://runs/j7/"]);
    assert_eq!(report.status.code(), Some(1), "{}", report.stderr);
    // The list alone: both recordings are here.
    assert_eq!(store.requests("GET"), asked + 1);
    let convert = store.run(&["convert", "s3://runs/j7/x.tspy", "-o", "s3://runs/x.svg"]);
    assert_error(
        &convert,
        "only record writes to object storage",
        &["aws s3 cp"],
    );
}

/// Microsoft's own server for tests.
#[test]
fn azure_keeps_a_job_through_faults() {
    let (Some(python), Some(azurite)) = (objects_python(), azurite()) else {
        return;
    };
    let store = Store::of(
        Command::new(python)
            .arg(program("azure_server.py"))
            .arg(azurite)
            .arg("runs"),
    );
    sends_and_reads(&store, "az");
    survives_faults(&store, "az");
}

/// No registry has a server of Google's XML protocol (fake-gcs-server has no such uploads): this is
/// the S3 server, which takes its requests.
#[test]
fn google_keeps_a_job_through_faults() {
    let Some(python) = objects_python() else {
        return;
    };
    let store =
        Store::of(Command::new(python).args([&program("s3_server.py"), "--google", "runs"]));
    sends_and_reads(&store, "gs");
    survives_faults(&store, "gs");
}

/// Many parts, of which some requests fail in each way, and the recording that is read back.
fn survives_faults(store: &Store, scheme: &str) {
    let read = store.object("runs/j7/x.tspy");
    fs::remove_dir_all(store.home.path().join("cache")).unwrap();
    let bytes = many_bytes(3);
    let address = format!("{scheme}://runs/many/3.tspy");
    store.leave("left", &bytes, &address);
    store.fail("error=0.15&lost=0.15&cut=0.15&short=0.15&slow=0.1");
    expect_success(&store.run(&["send"]));
    assert!(store.spooled().is_empty());
    let recording = format!("{scheme}://runs/j7/x.tspy");
    expect_success(&store.run(&["inspect", &recording]));
    store.fail("");
    assert_eq!(store.object("runs/many/3.tspy"), facts(&bytes));
    let copies = store.home.path().join("cache/torchspy/objects");
    let copy = fs::read(copies.join(scheme).join("runs/j7/x.tspy")).unwrap();
    assert_eq!(facts(&copy), read);
}

/// What every store does: names that are taken get numbers, and recordings are read back.
fn sends_and_reads(store: &Store, scheme: &str) {
    let at = |rest: &str| format!("{scheme}://runs/{rest}");
    let (pattern, sent) = (at("{job}/x.tspy"), at("j7/x.tspy"));
    let first = store.record(&pattern, &[]);
    expect_success(&first);
    expect(&first, &[&format!("sent {sent}")]);
    assert!(store.spooled().is_empty());
    let kept = store.object("runs/j7/x.tspy");
    let second = store.record(&sent, &[]);
    let numbered = format!("sent {}", at("j7/x-2.tspy"));
    expect(&second, &[&format!("{sent} is there already"), &numbered]);
    assert_eq!(store.object("runs/j7/x.tspy"), kept);
    expect_success(&store.record(&pattern, &["--force"]));
    assert_ne!(store.object("runs/j7/x.tspy"), kept);
    assert_eq!(store.keys(), ["runs/j7/x-2.tspy", "runs/j7/x.tspy"]);

    let inspected = store.run(&["inspect", &sent]);
    expect_success(&inspected);
    assert!(
        inspected.stdout.contains("sleep 0.3"),
        "{}",
        inspected.stdout
    );
    // All were read, and nothing trains in them.
    let report = store.run(&["report", &at("j7/"), "--json"]);
    let error = format!("no rank can be read from 2 recordings in {}", at("j7"));
    assert_error(&report, &error, &["torchspy inspect"]);
    let scaling = store.run(&["scaling", &at("j7/")]);
    assert_error(&scaling, &error, &["torchspy inspect"]);
    let missing = at("j7/y.tspy");
    let diff = store.run(&["diff", &sent, &missing]);
    assert_error(&diff, &format!("there is no {missing}"), &["torchspy send"]);
    let empty = store.run(&["report", &at("j8/")]);
    let error = format!("{} has no recordings", at("j8"));
    assert_error(&empty, &error, &["torchspy record", &at("j8/{host}")]);
    let elsewhere = store.record(&format!("{scheme}://none/x.tspy"), &[]);
    expect(&elsewhere, &["the bucket has to be there"]);
    fs::remove_dir_all(store.spool()).unwrap();
}

#[test]
fn what_is_no_server_is_refused() {
    for (scheme, variable) in [
        ("s3", "AWS_ENDPOINT_URL"),
        ("gs", "GOOGLE_BASE_URL"),
        ("az", "AZURE_STORAGE_ENDPOINT"),
    ] {
        for server in ["http://", "minio:9000"] {
            let mut command = Command::new(TORCHSPY);
            command.args(["inspect", &format!("{scheme}://runs/x.tspy")]);
            let output = output_of(command.env(variable, server));
            assert_eq!(output.status.code(), Some(2), "{}", output.stderr);
            let error = format!("the environment names {server:?} as the server");
            assert_error(&output, &error, &[variable]);
        }
    }
}

#[test]
fn a_store_is_reached_by_https() {
    let Some(python) = objects_python() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let certificate = home.path().join("certificate.pem");
    let trusted = certificate.to_str().unwrap();
    let store =
        Store::of(Command::new(python).args([&*program("s3_server.py"), "--tls", trusted, "runs"]));
    assert!(store.address.starts_with("https://"));
    let record = ["record", "-o", "s3://runs/x.tspy", "--", "sleep", "0.3"];
    let recorded = output_of(store.torchspy(&record).env("SSL_CERT_FILE", trusted));
    expect(&recorded, &["sent s3://runs/x.tspy"]);
}

#[test]
fn only_recordings_have_addresses() {
    let store = Command::new(TORCHSPY)
        .args(["record", "-o", "s3://runs/x.html", "--", "true"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&store.stderr);
    assert_eq!(store.status.code(), Some(2));
    assert!(text.contains("only recordings (.tspy)"), "{text}");
}

/// The bucket is missing when it is recorded, and is there when it is sent on: by the next
/// recording, or by `send`.
#[test]
fn what_cannot_be_sent_stays_in_the_spool_and_is_sent_on() {
    let (Some(store), Some(python)) = (Store::start(), any_python()) else {
        return;
    };
    let failed = store.record("s3://later/{job}/a.tspy", &[]);
    // The program's own status: its work was done.
    expect_success(&failed);
    let spool = store.spool().display().to_string();
    expect(
        &failed,
        &[
            "warning: s3://later/j7/a.tspy was not sent",
            &spool,
            &format!("torchspy send --spool {spool}"),
        ],
    );
    let again = store.run(&["send"]);
    assert_eq!(again.status.code(), Some(1));
    let target = Target::spawn(Command::new("sleep").arg("60"));
    let (pid, folder) = (target.pid().to_string(), store.home.path().join("other"));
    let attach = ["record", "-p", &pid, "-d", "0.3", "-o", "s3://later/c.tspy"];
    let attached = store.run(&[&attach[..], &["--spool", folder.to_str().unwrap()]].concat());
    assert_eq!(attached.status.code(), Some(1), "{}", attached.stderr);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    let kept = store.spooled();
    assert_eq!(kept.len(), 2, "{kept:?}");
    let recording = kept.iter().find(|name| name.ends_with("tspy")).unwrap();
    let recording = store.spool().join(recording);
    let bytes = fs::read(&recording).unwrap();
    store.ask("PUT", "/later", b"");

    // It ends once the recording is gone from the spool, or fails.
    let wait = "import os, sys, time\nend = time.monotonic() + 60\n\
                while os.path.exists(sys.argv[1]): time.sleep(0.01); assert time.monotonic() < end";
    let next = store.run(&[
        "record",
        "-o",
        "s3://later/b.tspy",
        "--",
        &python,
        "-c",
        wait,
        recording.to_str().unwrap(),
    ]);
    expect_success(&next);
    expect(
        &next,
        &[
            "sent s3://later/j7/a.tspy, which an earlier run had left",
            "sent s3://later/b.tspy",
        ],
    );
    assert_eq!(store.object("later/j7/a.tspy"), facts(&bytes));
    assert!(store.spooled().is_empty());

    store.leave("left", &bytes, "s3://later/j7/a.tspy");
    let sent = store.run(&["send"]);
    expect_success(&sent);
    // It was there, and was recognized.
    expect(&sent, &["sent s3://later/j7/a.tspy"]);
    assert_eq!(store.keys(), ["later/b.tspy", "later/j7/a.tspy"]);
    expect(&store.run(&["send"]), &["nothing is left in"]);

    store.leave("odd", &bytes, "s3://later/odd.tspy");
    fs::write(store.spool().join("odd.send"), "{").unwrap();
    let odd = store.run(&["send"]);
    assert_eq!(odd.status.code(), Some(1));
    expect(&odd, &["odd.tspy: where it goes is not known"]);
    assert_eq!(store.spooled().len(), 2);
}

#[test]
fn nothing_is_lost_by_faults() {
    let Some(store) = Store::start() else { return };
    expect_success(&store.record("s3://runs/j7/0.tspy", &[]));
    let recorded = store.object("runs/j7/0.tspy");
    let bytes: Vec<Vec<u8>> = (0..3).map(many_bytes).collect();
    for (number, bytes) in bytes.iter().enumerate() {
        store.leave(
            &number.to_string(),
            bytes,
            &format!("s3://runs/many/{number}.tspy"),
        );
    }
    store.fail("error=0.15&lost=0.15&cut=0.15&short=0.15&slow=0.1");
    expect_success(&store.run(&["send"]));
    assert!(store.spooled().is_empty());
    let inspected = store.run(&["inspect", "s3://runs/j7/0.tspy"]);
    expect_success(&inspected);
    store.fail("");
    let requests = &store.state()["requests"];
    for kind in ["error", "lost", "cut"] {
        assert!(
            requests[kind].as_u64().unwrap_or(0) > 0,
            "no {kind}: {requests}"
        );
    }
    for (number, bytes) in bytes.iter().enumerate() {
        let key = format!("runs/many/{number}.tspy");
        assert_eq!(store.object(&key), facts(bytes), "{requests}");
    }
    let copy = store
        .home
        .path()
        .join("cache/torchspy/objects/s3/runs/j7/0.tspy");
    assert_eq!(facts(&fs::read(copy).unwrap()), recorded);
}

/// A short form of `scripts/bench objects`.
#[test]
fn a_sender_that_is_killed_loses_nothing() {
    let Some(store) = Store::start() else { return };
    let bytes = many_bytes(7);
    store.leave("left", &bytes, "s3://runs/left.tspy");
    // Each request takes long enough that some end in its midst.
    store.fail("slow=1");
    for pause_ms in [20, 400, 700, 1000, 1300] {
        let mut sender = store.torchspy(&["send"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause_ms));
        sender.kill().unwrap();
        sender.wait().unwrap();
        if !Path::new(&store.spool().join("left.tspy")).exists() {
            break;
        }
        assert!(store.spool().join("left.send").exists());
        assert_eq!(fs::read(store.spool().join("left.tspy")).unwrap(), bytes);
    }
    store.fail("");
    expect_success(&store.run(&["send"]));
    assert_eq!(store.object("runs/left.tspy"), facts(&bytes));
    assert_eq!(store.keys(), ["runs/left.tspy"]);
    assert!(store.spooled().is_empty());
    assert_eq!(store.state()["uploads"], 0);
}
