//! Copies of recordings in object storage, for commands that read them.
//!
//! They are kept in a folder of the user's, each with the tag by which the store names its content:
//! what has not changed is not loaded again, and reductions that are kept beside recordings
//! (`report DIR`) serve again, too.

use super::address::Address;
use super::bucket::{Bucket, failure};
use super::retry::{READING, persist};
use super::{block_on, user_folder};
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::messages;
use crate::cli::output_file::{cannot_write, create_exclusively};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{Error, ObjectMeta, ObjectStoreExt};
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Recordings that are loaded at the same time.
const AT_ONCE: usize = 16;

/// Replaces an address by the path of a copy: of a recording, or of a folder with all recordings
/// below the address. Other arguments stay.
///
/// # Errors
/// The store cannot be reached, has nothing there, or the copy cannot be written.
pub(crate) fn fetch(argument: &mut PathBuf) -> Result<(), Failure> {
    if !Address::is_meant_by(argument) {
        return Ok(());
    }
    let address = Address::parse(argument)?;
    let bucket = address.bucket()?;
    let kept = folder()?.join(address.as_path());
    let work = async {
        match Address::is_folder(argument) {
            false => fetch_one(&address, &bucket).await,
            true => fetch_all(&address, &bucket, &kept).await,
        }
    };
    block_on(work)??;
    *argument = kept;
    Ok(())
}

/// What messages call a path: the address, if it is a copy.
pub(crate) fn shown(path: &Path) -> String {
    address_of(path).unwrap_or_else(|| path.display().to_string())
}

/// The address of which a path is a copy.
pub(crate) fn address_of(path: &Path) -> Option<String> {
    let kept = path.strip_prefix(folder().ok()?).ok()?;
    let (scheme, rest) = kept.to_str()?.split_once('/')?;
    Some(format!("{scheme}://{rest}"))
}

/// Where copies are kept: `$XDG_CACHE_HOME/torchspy/objects`.
fn folder() -> Result<PathBuf, Failure> {
    let cache = user_folder("XDG_CACHE_HOME", ".cache");
    cache.map(|cache| cache.join("objects")).ok_or_else(|| {
        Failure::message("there is no folder for copies of recordings")
            .hint("set XDG_CACHE_HOME to one, with its full path")
    })
}

async fn fetch_one(address: &Address, bucket: &Bucket) -> Result<(), Failure> {
    let found = persist(READING, || bucket.objects.head(&address.key)).await;
    let found = found.map_err(|error| match error {
        Error::NotFound { .. } => Failure::message(format!("there is no {address}")).hint(
            "a recording is there once its first part was sent; torchspy send sends what is left",
        ),
        error => failure(address, error),
    })?;
    update(address, bucket, &found).await
}

async fn fetch_all(address: &Address, bucket: &Bucket, kept: &Path) -> Result<(), Failure> {
    let list = || bucket.objects.list(Some(&address.key)).try_collect();
    let mut found: Vec<ObjectMeta> = persist(READING, list)
        .await
        .map_err(|error| failure(address, error))?;
    found.retain(|object| object.location.extension() == Some(Format::Recording.extension()));
    if found.is_empty() {
        return Err(
            Failure::message(format!("{address} has no recordings")).hint(format!(
                "torchspy record -o '{address}/{{host}}-{{rank}}.tspy' writes one for each rank"
            )),
        );
    }
    let mut current: Vec<PathBuf> = Vec::new();
    let mut updates = stream::iter(found)
        .map(|object| async move {
            let address = address.with_key(object.location.clone());
            let updated = update(&address, bucket, &object).await;
            (address, updated)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((address, updated)) = updates.next().await {
        match updated {
            Ok(()) => current.push(folder()?.join(address.as_path())),
            Err(failure) => {
                messages::failed(&failure);
                messages::note(&format!("{address} is left out"));
            }
        }
    }
    current.sort();
    remove_others(kept, &current);
    Ok(())
}

/// Removes copies of recordings that are no longer there, or could not be loaded.
fn remove_others(folder: &Path, current: &[PathBuf]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_others(&path, current);
        } else if path
            .extension()
            .is_some_and(|end| end == Format::Recording.extension())
            && current.binary_search(&path).is_err()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Loads a recording unless the copy is the same.
async fn update(address: &Address, bucket: &Bucket, found: &ObjectMeta) -> Result<(), Failure> {
    let path = folder()?.join(address.as_path());
    let tag_path = path.with_extension("tag");
    let tag = format!(
        "{} {} {}",
        found.size,
        found.last_modified.to_rfc3339(),
        found.e_tag.as_deref().unwrap_or_default()
    );
    let is_same = fs::read_to_string(&tag_path).is_ok_and(|kept| kept == tag)
        && fs::metadata(&path).is_ok_and(|data| data.len() == found.size);
    if is_same {
        return Ok(());
    }
    let own = path.with_extension(format!("part.{}", std::process::id()));
    let written = load(address, bucket, &own).await.and_then(|()| {
        // An old tag must never stand beside a new recording.
        let replaced = fs::rename(&own, &path).and_then(|()| fs::write(&tag_path, &tag));
        replaced.map_err(|error| cannot_write(&path, error))
    });
    if written.is_err() {
        let _ = fs::remove_file(&own);
    }
    written
}

async fn load(address: &Address, bucket: &Bucket, path: &Path) -> Result<(), Failure> {
    let failed = |error| cannot_write(path, error);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(failed)?;
    let mut file = create_exclusively(path, Format::Recording).map_err(failed)?;
    let got = persist(READING, || bucket.objects.get(&address.key)).await;
    let unreachable = |error| failure(address, error);
    let mut bytes = got.map_err(unreachable)?.into_stream();
    while let Some(piece) = bytes.next().await {
        file.write_all(&piece.map_err(unreachable)?)
            .map_err(failed)?;
    }
    file.flush().map_err(|error: io::Error| failed(error))
}
