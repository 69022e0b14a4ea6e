//! Trying again what may succeed later.

use object_store::{Error, Result};
use std::time::{Duration, Instant};

/// How long a request is tried while a recording is sent. Nobody waits, but at the recording's end.
pub(super) const SENDING: Duration = Duration::from_secs(30);
/// How long a request is tried while somebody waits for a report.
pub(super) const READING: Duration = Duration::from_secs(8);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// The result of a request, which is made again until it succeeds, fails for good, or was tried
/// for so long.
pub(super) async fn persist<T, F>(longest: Duration, request: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let start = Instant::now();
    loop {
        match request().await {
            Err(error) if may_pass(&error) && start.elapsed() < longest => {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Whether the same request may succeed later: all but the answers that are about the object, the
/// request or the credentials.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}
