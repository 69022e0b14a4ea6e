//! Where an MLflow server is, and who asks: as MLflow's own client takes it.
//!
//! Source: MLflow 3.17, `mlflow/utils/credentials.py`, `mlflow/environment_variables.py`,
//! `mlflow/utils/rest_utils.py`.

use crate::cli::args::MlflowArguments;
use crate::cli::failure::Failure;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::ffi::OsString;
use std::path::PathBuf;
use ureq::http::Uri;

/// The experiment, where neither an option nor MLFLOW_EXPERIMENT_NAME names one.
const EXPERIMENT: &str = "torchspy";

/// What `--mlflow` asks for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct MlflowPlan {
    /// Without user, query and the slash at its end.
    pub(super) uri: String,
    /// The header `Authorization`.
    pub(super) authorization: Option<String>,
    pub(super) experiment: String,
    pub(super) run_name: Option<String>,
    /// Certificates of authorities, in place of the usual ones.
    pub(super) certificates: Option<PathBuf>,
    /// Certificates are not checked.
    pub(super) insecure: bool,
}

impl std::fmt::Debug for MlflowPlan {
    /// Without what must not be printed.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("MlflowPlan")
            .field(&self.uri)
            .finish()
    }
}

impl MlflowPlan {
    /// From what was typed and the environment; `None` if it is not asked for.
    pub(crate) fn new(arguments: MlflowArguments) -> Result<Option<Self>, Failure> {
        let Some(uri) = arguments.mlflow else {
            return Ok(None);
        };
        let (experiment, run) = (arguments.mlflow_experiment, arguments.mlflow_run);
        Self::with(&uri, experiment, run, |name| std::env::var_os(name)).map(Some)
    }

    fn with(
        uri: &str,
        experiment: Option<String>,
        run_name: Option<String>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let text = |name: &str| {
            let value = variable(name)?.into_string().ok()?;
            Some(value).filter(|value| !value.is_empty())
        };
        let (uri, user) = checked(uri)?;
        let insecure = text("MLFLOW_TRACKING_INSECURE_TLS");
        Ok(Self {
            authorization: user
                .or_else(|| authorization(&text))
                .filter(|value| value.chars().all(|each| ('\x20'..'\x7f').contains(&each))),
            uri,
            experiment: experiment
                .or_else(|| text("MLFLOW_EXPERIMENT_NAME"))
                .unwrap_or_else(|| EXPERIMENT.to_owned()),
            run_name: run_name.or_else(|| text("MLFLOW_RUN_NAME")),
            certificates: variable("MLFLOW_TRACKING_SERVER_CERT_PATH").map(PathBuf::from),
            insecure: insecure.is_some_and(|it| matches!(it.to_lowercase().as_str(), "true" | "1")),
        })
    }

    /// The address, for people.
    pub(super) fn shown(&self) -> &str {
        &self.uri
    }
}

/// An address and the authorization that it has.
fn checked(given: &str) -> Result<(String, Option<String>), Failure> {
    let parsed: Option<Uri> = given.parse().ok();
    let scheme = parsed.as_ref().and_then(Uri::scheme_str);
    let authority = parsed.as_ref().and_then(Uri::authority);
    let (Some(uri), Some(scheme @ ("http" | "https")), Some(authority)) =
        (&parsed, scheme, authority)
    else {
        let is_store =
            given.contains("://") && !given.starts_with("http") || given.starts_with('/');
        return Err(match is_store || given.starts_with("databricks") {
            true => Failure::usage(
                format!(
                    "--mlflow {}: MLflow's REST interface is asked, and this is no server",
                    shown(given)
                ),
                "mlflow server --backend-store-uri sqlite:///mlflow.db, then --mlflow http://127.0.0.1:5000",
            ),
            false => Failure::usage(
                format!("--mlflow {}: no address of a server", shown(given)),
                "such as http://127.0.0.1:5000, or https://mlflow.example.org",
            ),
        });
    };
    let whole = authority.as_str();
    let (user, host) = match whole.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, whole),
    };
    let path = uri.path().trim_end_matches('/');
    Ok((
        format!("{scheme}://{host}{path}"),
        user.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user))),
    ))
}

/// An address without the user that it may have.
fn shown(given: &str) -> String {
    match (given.split_once("://"), given.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => given.to_owned(),
    }
}

/// A name and a password come before a token, and the environment before ~/.mlflow/credentials.
fn authorization(text: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let kept = text("HOME").and_then(|home| {
        std::fs::read_to_string(PathBuf::from(home).join(".mlflow/credentials")).ok()
    });
    let kept = |key: &str| value_of(kept.as_deref()?, key);
    let named = |name: &str| text(name).or_else(|| kept(&name.to_lowercase()));
    let user = named("MLFLOW_TRACKING_USERNAME").zip(named("MLFLOW_TRACKING_PASSWORD"));
    match user {
        Some((user, password)) => {
            let both = BASE64_STANDARD.encode(format!("{user}:{password}"));
            Some(format!("Basic {both}"))
        }
        None => text("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}")),
    }
}

/// A key of the section `[mlflow]`.
fn value_of(file: &str, key: &str) -> Option<String> {
    let lines = file.lines().map(str::trim);
    let own = lines.skip_while(|line| *line != "[mlflow]").skip(1);
    let mut own = own.take_while(|line| !line.starts_with('['));
    own.find_map(|line| {
        let (name, value) = line.split_once(['=', ':'])?;
        (name.trim().to_lowercase() == key).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(uri: &str, variables: &[(&str, &str)]) -> Result<MlflowPlan, Failure> {
        MlflowPlan::with(uri, None, None, |name| {
            let found = variables.iter().find(|(each, _)| *each == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn credentials_are_those_of_mlflows_client() {
        let user = ("MLFLOW_TRACKING_USERNAME", "ann");
        let password = ("MLFLOW_TRACKING_PASSWORD", "pw");
        let token = ("MLFLOW_TRACKING_TOKEN", "t0");
        let of =
            |uri: &str, variables: &[(&str, &str)]| plan(uri, variables).unwrap().authorization;
        let basic = Some("Basic YW5uOnB3".to_owned());
        assert_eq!(of("http://h", &[]), None);
        assert_eq!(of("http://h", &[token]), Some("Bearer t0".to_owned()));
        assert_eq!(of("http://h", &[token, user, password]), basic);
        assert_eq!(of("http://h", &[token, user]), Some("Bearer t0".to_owned()));
        assert_eq!(of("http://ann:pw@h", &[token]), basic);
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".mlflow")).unwrap();
        let file = "[other]\nmlflow_tracking_username = x\n[mlflow]\nmlflow_tracking_username = ann\nMLFLOW_TRACKING_PASSWORD=pw\n";
        std::fs::write(home.path().join(".mlflow/credentials"), file).unwrap();
        let home = ("HOME", home.path().to_str().unwrap());
        assert_eq!(of("http://h", &[home, token]), basic);
    }

    #[test]
    fn addresses_are_checked_and_passwords_are_not_shown() {
        let known = plan("https://ann:pw@host:5000/mlflow/", &[]).unwrap();
        assert_eq!(known.shown(), "https://host:5000/mlflow");
        assert!(!format!("{known:?}").contains("YW5u"));
        for uri in [
            "sqlite:///mlflow.db",
            "/tmp/mlruns",
            "databricks",
            "host:5000",
            "http://",
            "x y",
        ] {
            let failure = plan(uri, &[]).unwrap_err();
            assert!(failure.hint.is_some() && failure.status == 2, "{uri}");
        }
        assert!(
            !plan("ftp://ann:pw@host", &[])
                .unwrap_err()
                .text()
                .contains("pw")
        );
    }
}
