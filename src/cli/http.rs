//! Answers HTTP requests on a thread, for `view` and `agent`.

use axum::Router;
use std::io;
use std::net::TcpListener;

/// Requests that are worked on at the same time; most wait for the one that reads a recording.
const AT_ONCE: usize = 8;

/// Answers requests, for as long as the process lives.
///
/// # Errors
/// The kernel's.
pub(super) fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(AT_ONCE).build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, router).await
    })
}
