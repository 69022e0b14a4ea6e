//! Answers scrapes.

use super::metrics::Metrics;
use crate::cli::http;
use crate::os::priority::run_behind;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

/// How far behind a trainer on the same machine.
const NICE: i32 = 10;
/// The text format of OpenMetrics 1.0, which `prometheus-client` writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers requests for `/metrics`, for as long as the process lives.
///
/// # Errors
/// The kernel's.
pub(crate) fn serve(listener: TcpListener, metrics: Arc<Mutex<Metrics>>) -> io::Result<()> {
    // Threads that are started from here on inherit it.
    run_behind(NICE);
    let scrape = move || async move {
        let text = metrics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .text();
        match text {
            Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    let router = Router::new()
        .route("/metrics", get(scrape))
        .fallback(|| async { (StatusCode::NOT_FOUND, "the series are at /metrics\n") });
    http::serve(listener, router)
}
