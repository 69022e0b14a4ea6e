//! MLflow's REST interface, version 2.0, as far as runs are logged by it.
//!
//! Source: <https://mlflow.org/docs/latest/rest-api.html>; MLflow 3.17,
//! `mlflow/server/handlers.py`.

use super::address::MlflowPlan;
use crate::cli::failure::Failure;
use crate::report::mlflow::{Metric, Worker};
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, AsSendBody, Body};

/// Metrics that a request may have.
const MOST_METRICS: usize = 1000;
/// Longest values of params and tags, characters; older servers allow fewer.
const LONGEST: usize = 250;
const CONNECT: Duration = Duration::from_secs(10);
/// How long an answer may take: MLFLOW_HTTP_REQUEST_TIMEOUT of MLflow's client.
const ANSWER: Duration = Duration::from_secs(120);
/// How long a connection may rest while a recording is read: uvicorn, which MLflow runs on, closes
/// it after 5 s.
const IDLE: Duration = Duration::from_secs(3);
/// How often a request is repeated that a server has no time for.
const REPEATS: u32 = 3;

/// A run of the server.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) id: String,
    pub(super) name: String,
    /// Where its artifacts are.
    pub(super) artifacts: String,
}

pub(super) struct Client {
    agent: Agent,
    uri: String,
    authorization: Option<String>,
}

impl Client {
    pub(super) fn new(plan: &MlflowPlan) -> Result<Self, Failure> {
        let mut tls = TlsConfig::builder().disable_verification(plan.insecure);
        if let Some(path) = &plan.certificates {
            let wrong = |why: &dyn std::fmt::Display| {
                Failure::message(format!(
                    "MLFLOW_TRACKING_SERVER_CERT_PATH: {}: {why}",
                    path.display()
                ))
                .hint("it names a file of certificates in PEM")
            };
            let bytes = std::fs::read(path).map_err(|error| wrong(&error))?;
            let mut certificates = Vec::new();
            for item in parse_pem(&bytes) {
                if let PemItem::Certificate(each) = item.map_err(|error| wrong(&error))? {
                    certificates.push(each);
                }
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            // A redirected POST would become a GET.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .max_idle_age(IDLE)
            .timeout_recv_response(Some(ANSWER))
            .user_agent(concat!("torchspy/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            uri: plan.uri.clone(),
            authorization: plan.authorization.clone(),
        })
    }

    /// The id of an experiment, which is made if there is none of the name.
    pub(super) fn experiment(&self, name: &str) -> Result<String, Failure> {
        if let Some(id) = self.find_experiment(name)? {
            return Ok(id);
        }
        match self.call("experiments/create", &json!({ "name": name })) {
            Ok(created) => text(&created, "/experiment_id"),
            // Another one was faster.
            Err(failure) => self.find_experiment(name)?.ok_or(failure),
        }
    }

    fn find_experiment(&self, name: &str) -> Result<Option<String>, Failure> {
        let path = "experiments/get-by-name";
        let url = self.url(path);
        let (status, answer) = self.answer(path, || {
            let request = self.agent.get(&url).query("experiment_name", name);
            self.authorized(request).call()
        })?;
        let is_missing = answer.pointer("/error_code").and_then(Value::as_str)
            == Some("RESOURCE_DOES_NOT_EXIST");
        if is_missing {
            return Ok(None);
        }
        let answer = self.checked(path, status, answer)?;
        text(&answer, "/experiment/experiment_id").map(Some)
    }

    pub(super) fn create_run(
        &self,
        experiment: &str,
        name: &str,
        started_ms: i64,
        tags: &[(&str, &str)],
    ) -> Result<Run, Failure> {
        let user = std::env::var("USER").ok();
        let user = user.as_deref().map(|user| ("mlflow.user", user));
        let tags: Vec<Value> = tags.iter().copied().chain(user).map(pair).collect();
        let created = self.call(
            "runs/create",
            &json!({
                "experiment_id": experiment,
                "run_name": name,
                "start_time": started_ms,
                "tags": tags,
            }),
        )?;
        Ok(Run {
            id: text(&created, "/run/info/run_id")?,
            name: name.to_owned(),
            artifacts: text(&created, "/run/info/artifact_uri")?,
        })
    }

    /// Logs params and metrics.
    pub(super) fn log(&self, run: &Run, worker: &Worker) -> Result<(), Failure> {
        let params = worker
            .params
            .iter()
            .map(|(key, value)| (*key, value.as_str()));
        let params: Vec<Value> = params.map(pair).collect();
        self.call(
            "runs/log-batch",
            &json!({ "run_id": run.id, "params": params }),
        )?;
        for metrics in worker.metrics.chunks(MOST_METRICS) {
            let metrics: Vec<Value> = metrics.iter().map(metric).collect();
            self.call(
                "runs/log-batch",
                &json!({ "run_id": run.id, "metrics": metrics }),
            )?;
        }
        Ok(())
    }

    pub(super) fn end_run(&self, run: &Run, status: &str, ended_ms: i64) -> Result<(), Failure> {
        let ended = json!({ "run_id": run.id, "status": status, "end_time": ended_ms });
        self.call("runs/update", &ended).map(|_| ())
    }

    /// Marks a run as failed, if that is possible.
    pub(super) fn fail_run(&self, run: &Run) {
        let ended = json!({ "run_id": run.id, "status": "FAILED" });
        let body = ended.to_string();
        let url = self.url("runs/update");
        let request = self
            .agent
            .post(&url)
            .header("Content-Type", "application/json");
        let _ = self.authorized(request).send(&body);
    }

    /// Where an artifact is uploaded to; `None` if the server does not take it. Servers pass
    /// artifacts on that are at `mlflow-artifacts:/PATH`.
    pub(super) fn artifact_url(&self, run: &Run, name: &str) -> Option<String> {
        let rest = run.artifacts.strip_prefix("mlflow-artifacts:")?;
        let path = match rest.strip_prefix("//") {
            // The host is that of the server itself.
            Some(with_host) => with_host.split_once('/').map_or("", |(_, path)| path),
            None => rest.trim_start_matches('/'),
        };
        let path = format!("{path}/{name}");
        let parts: Vec<String> = path.split('/').map(escaped).collect();
        Some(
            self.url(&format!("mlflow-artifacts/artifacts/{}", parts.join("/")))
                .replace("/2.0/mlflow/mlflow-artifacts/", "/2.0/mlflow-artifacts/"),
        )
    }

    pub(super) fn put(&self, url: &str, body: impl AsSendBody + Copy) -> Result<(), Failure> {
        let (status, answer) = self.answer("artifacts", || {
            let request = self
                .agent
                .put(url)
                .header("Content-Type", "application/octet-stream");
            self.authorized(request).send(body)
        })?;
        self.checked("artifacts", status, answer).map(|_| ())
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.uri)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.authorization {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let (url, body) = (self.url(path), body.to_string());
        let (status, answer) = self.answer(path, || {
            let request = self
                .agent
                .post(&url)
                .header("Content-Type", "application/json");
            self.authorized(request).send(&body)
        })?;
        self.checked(path, status, answer)
    }

    /// Sends a request, and again while the server has no time for it.
    fn answer(
        &self,
        path: &str,
        send: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<(u16, Value), Failure> {
        let mut repeats = 0;
        loop {
            let mut response = send().map_err(|error| self.unreachable(&error))?;
            let status = response.status().as_u16();
            if matches!(status, 429 | 502 | 503 | 504) && repeats < REPEATS {
                thread::sleep(Duration::from_secs(1 << repeats));
                repeats += 1;
                continue;
            }
            let text = response.body_mut().read_to_string();
            let text = text.map_err(|error| self.unreachable(&error))?;
            let is_success = (200..300).contains(&status);
            return match serde_json::from_str(&text) {
                Ok(value) => Ok((status, value)),
                Err(_) if path == "artifacts" && is_success => Ok((status, Value::Null)),
                Err(_) if is_success => Err(self.no_mlflow()),
                Err(_) => Ok((status, Value::Null)),
            };
        }
    }

    fn checked(&self, path: &str, status: u16, answer: Value) -> Result<Value, Failure> {
        let message = answer.pointer("/message").and_then(Value::as_str);
        let message = message.map(|message| {
            let line = message.lines().next().unwrap_or_default();
            line.chars()
                .filter(|each| !each.is_control())
                .take(LONGEST)
                .collect::<String>()
        });
        let refused = || {
            let message = message.as_deref().unwrap_or("it gives no reason");
            format!(
                "MLflow at {} refuses {path} ({status}): {message}",
                self.uri
            )
        };
        match status {
            200..=299 => Ok(answer),
            300..=399 => Err(Failure::message(format!(
                "MLflow at {} sends elsewhere ({status})",
                self.uri
            ))
            .hint("give the address that it sends to, such as https:// in place of http://")),
            401 | 403 => Err(Failure::message(refused()).hint(
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, \
                 as for MLflow's own client",
            )),
            _ if answer.is_null() => Err(self.no_mlflow()),
            _ => Err(Failure::message(refused()).hint(REPEAT)),
        }
    }

    fn no_mlflow(&self) -> Failure {
        Failure::message(format!("{} answers, but not as an MLflow server", self.uri))
            .hint("it is the address that MLFLOW_TRACKING_URI has for MLflow's own client")
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::message(format!("cannot reach MLflow at {}: {error}", self.uri)).hint(REPEAT)
    }
}

/// What to do when a server failed.
const REPEAT: &str = "the recording is as it was: when the server is there, torchspy report --mlflow \
     logs a new run of it";

/// A param or tag, which older servers limit.
fn pair((key, value): (&str, &str)) -> Value {
    let value: String = value.chars().take(LONGEST).collect();
    json!({ "key": key, "value": value })
}

fn metric(metric: &Metric) -> Value {
    json!({
        "key": metric.key,
        "value": metric.value,
        "timestamp": metric.timestamp_ms,
        "step": metric.step,
    })
}

fn text(answer: &Value, pointer: &str) -> Result<String, Failure> {
    let found = answer.pointer(pointer).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| {
        Failure::message(format!("MLflow's answer lacks {pointer}"))
            .hint("it may be of a version whose REST interface is not 2.0")
    })
}

/// A part of a path, percent-encoded (RFC 3986).
fn escaped(part: &str) -> String {
    let mut out = String::new();
    for byte in part.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
