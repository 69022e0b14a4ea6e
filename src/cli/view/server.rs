//! Requests and answers.

use super::html;
use super::library::Library;
use crate::cli::failure::Failure;
use crate::cli::http;
use crate::os::priority::run_behind;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use std::io::{self, Read};
use std::net::TcpListener;
use std::sync::Arc;

/// How far behind a trainer on the same machine.
const NICE: i32 = 10;
/// What is served.
pub(crate) struct Site {
    token: String,
    library: Library,
}

impl Site {
    /// # Errors
    /// The kernel has no random bytes.
    pub(crate) fn new(library: Library) -> io::Result<Self> {
        let mut bytes = [0_u8; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { token, library })
    }

    /// Where everything lies: `/TOKEN/`.
    pub(crate) fn root(&self) -> String {
        format!("/{}/", self.token)
    }
}

/// Answers requests, for as long as the process lives.
///
/// # Errors
/// The kernel's.
pub(crate) fn serve(listener: TcpListener, site: Site) -> io::Result<()> {
    // Threads that are started from here on inherit it.
    run_behind(NICE);
    let site = Arc::new(site);
    let router = Router::new()
        .route("/{token}", get(index))
        .route("/{token}/", get(index))
        .route("/{token}/job", get(job))
        .route("/{token}/{file}", get(asset))
        .route("/{token}/run/{name}", get(run))
        .route("/{token}/page/{name}", get(page))
        .route("/{token}/row/{name}", get(row))
        .route("/{token}/state/{name}", get(state))
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&site), guard))
        .with_state(site);
    http::serve(listener, router)
}

/// Lets only those requests through that come from a page that the user opened.
async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let refused = if !is_this_machine(request.headers()) {
        Some((
            StatusCode::FORBIDDEN,
            "this server answers to 127.0.0.1 and localhost only",
        ))
    } else if !has_token(request.uri().path(), &site.token) {
        Some((
            StatusCode::FORBIDDEN,
            "the address lacks the token that torchspy view has printed",
        ))
    } else if request.method() != Method::GET {
        Some((StatusCode::METHOD_NOT_ALLOWED, "GET only"))
    } else {
        None
    };
    match refused {
        Some((status, text)) => {
            let mut response = answer(status, TEXT, format!("error: {text}\n"));
            if status == StatusCode::METHOD_NOT_ALLOWED {
                let get = HeaderValue::from_static("GET");
                response.headers_mut().insert(header::ALLOW, get);
            }
            response
        }
        None => next.run(request).await,
    }
}

/// Whether the `Host` names this machine, with any port: one may be forwarded by ssh.
fn is_this_machine(headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let Some(host) = host else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "127.0.0.1" | "localhost" | "[::1]")
}

/// Compares in a time that does not depend on where the difference is.
fn has_token(path: &str, token: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or_default();
    let difference = first
        .bytes()
        .zip(token.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    first.len() == token.len() && difference == 0
}

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    answer_with(status, kind, "frame-ancestors 'self'", body)
}

fn answer_with(
    status: StatusCode,
    kind: &'static str,
    policy: &'static str,
    body: impl Into<Body>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn failed(failure: &Failure) -> Response {
    let mut text = format!("error: {}\n", failure.text());
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    let is_missing = failure.error.chain().any(|cause| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    });
    let status = match is_missing {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::UNPROCESSABLE_ENTITY,
    };
    answer(status, TEXT, text)
}

/// Runs what reads files, off the thread that listens.
async fn work(task: impl FnOnce() -> Result<Response, Failure> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(task).await {
        Ok(Ok(response)) => response,
        Ok(Err(failure)) => failed(&failure),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, error.to_string()),
    }
}

fn json(value: &impl serde::Serialize) -> Result<Response, Failure> {
    let text = serde_json::to_vec(value).map_err(Failure::new)?;
    Ok(answer(StatusCode::OK, JSON, text))
}

async fn index(State(site): State<Arc<Site>>) -> Response {
    work(move || {
        if let Some(only) = &site.library.only {
            let mut response = answer(StatusCode::FOUND, TEXT, "");
            let address = format!("{}run/{}", site.root(), html::encoded(only));
            let address = address.parse().map_err(Failure::new)?;
            response.headers_mut().insert(header::LOCATION, address);
            return Ok(response);
        }
        let (listed, left_out) = site.library.list().map_err(Failure::new)?;
        let text = html::index(site.library.path(), &listed, left_out);
        Ok(answer_with(StatusCode::OK, HTML, html::POLICY, text))
    })
    .await
}

async fn job(State(site): State<Arc<Site>>) -> Response {
    work(move || Ok(answer(StatusCode::OK, HTML, site.library.job()?))).await
}

async fn asset(Path((_, file)): Path<(String, String)>) -> Response {
    let found = html::ASSETS.iter().find(|(name, ..)| *name == file);
    match found {
        Some(&(_, kind, text)) => answer(StatusCode::OK, kind, text),
        None => nothing().await,
    }
}

async fn nothing() -> Response {
    answer(
        StatusCode::NOT_FOUND,
        TEXT,
        "error: there is nothing here\n",
    )
}

async fn run(State(site): State<Arc<Site>>, Path((_, name)): Path<(String, String)>) -> Response {
    work(move || {
        site.library.file(&name).map_err(|error| {
            let error = anyhow::Error::new(error).context(format!("cannot open {name}"));
            Failure::new(error).hint("the folder's page lists what is there now")
        })?;
        let text = html::shell(&name, site.library.only.is_none());
        Ok(answer_with(StatusCode::OK, HTML, html::POLICY, text))
    })
    .await
}

async fn page(
    State(site): State<Arc<Site>>,
    Path((_, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    work(move || {
        let interval = interval(query.as_deref().unwrap_or_default())?;
        let text = site.library.page(&name, interval)?;
        Ok(answer(StatusCode::OK, HTML, text))
    })
    .await
}

/// `from` and `to` of a query, in seconds; ns.
fn interval(query: &str) -> Result<Option<(u64, u64)>, Failure> {
    let value = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    crate::cli::plan::interval(value("from"), value("to"))
}

async fn row(State(site): State<Arc<Site>>, Path((_, name)): Path<(String, String)>) -> Response {
    work(move || json(&site.library.row(&name)?)).await
}

async fn state(State(site): State<Arc<Site>>, Path((_, name)): Path<(String, String)>) -> Response {
    work(move || json(&site.library.state(&name).map_err(Failure::new)?)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_this_machine() {
        let is = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            is_this_machine(&headers)
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:8000",
            "localhost:1",
            "localhost",
            "[::1]:80",
        ] {
            assert!(is(host), "{host}");
        }
        for host in [
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org:80",
            "example.org:127.0.0.1",
            "127.0.0.1:80@example.org",
            "",
        ] {
            assert!(!is(host), "{host}");
        }
        assert!(!is_this_machine(&HeaderMap::new()));
    }

    #[test]
    fn the_token_is_the_first_part_of_the_path() {
        assert!(has_token("/abc/", "abc") && has_token("/abc/run/x", "abc"));
        for path in ["/", "/ab/", "/abcd/", "/abd/", "/x/abc/", "abc", ""] {
            assert!(!has_token(path, "abc"), "{path}");
        }
    }
}
