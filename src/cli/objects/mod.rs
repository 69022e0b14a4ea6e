//! Recordings in object storage: `s3://bucket/run/3.tspy`, and `gs://` and `az://`, by the crate
//! object_store, whose environment variables name credentials and endpoints.
//!
//! A recording is written into the [`spool`], a folder on this machine, and [`sender`] sends it
//! from there while it grows and at its end; nothing that samples waits for the network. What could
//! not be sent stays in the spool for `torchspy send`. An object is never replaced unless it is an
//! earlier part of the same recording ([`delivery`]).
//!
//! Commands that read recordings read copies, which [`fetch`] keeps.

pub(super) mod address;
mod bucket;
pub(super) mod delivery;
pub(super) mod fetch;
mod retry;
pub(super) mod sender;
pub(super) mod spool;

use super::failure::Failure;
use std::path::PathBuf;
use tokio::runtime::Builder;

/// Waits for work of object_store on the calling thread.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    let result = runtime.block_on(work);
    // A look-up of a name may take minutes, and nobody waits for it any more.
    runtime.shutdown_background();
    Ok(result)
}

/// torchspy's folder below one of the user's, by its variable, or its name in their home.
fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        // The specification of these folders: relative paths are to be ignored.
        value.filter(|path| path.is_absolute())
    };
    let folder = folder(variable).or_else(|| Some(folder("HOME")?.join(in_home)));
    Some(folder?.join("torchspy"))
}
