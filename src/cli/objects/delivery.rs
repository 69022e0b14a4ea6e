//! Sending what there is of a recording.
//!
//! An object becomes visible as a whole, also one that is uploaded in parts. So a recording that
//! grows is sent again from its beginning, and each object holds an earlier part of the file that
//! the spool has: whether an object is of this recording is seen by its content, and asking again
//! after an answer was lost, or torchspy was killed, does no harm.

use super::address::Address;
use super::bucket::{Bucket, failure};
use super::retry::{SENDING, persist};
use super::spool::Entry;
use crate::cli::failure::Failure;
use object_store::{Error, ObjectMeta, ObjectStoreExt, PutMode, PutPayload, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a part. Stores want 5 MiB or more, and no more than 10,000 parts
/// (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>).
const PART: u64 = 8 << 20;
/// Bytes by which an object is recognized. They hold the facts of the run: host, pid and start.
const HEAD: u64 = 64 << 10;

/// Sends the first `length` bytes of `file`, the recording of an entry. Returns where they are.
///
/// # Errors
/// The store's, after half a minute of trying, or the address is taken.
pub(crate) async fn deliver(
    entry: &mut Entry,
    file: &File,
    length: u64,
) -> Result<Address, Failure> {
    abort_earlier(entry).await;
    let mut taken = None;
    for candidate in entry.candidates() {
        let address = Address::parse(&candidate)?;
        let bucket = address.bucket()?;
        let delivery = Delivery {
            address: &address,
            bucket: &bucket,
            file,
            length,
        };
        match delivery.run(entry).await {
            Ok(true) => return Ok(address),
            Ok(false) => taken = Some(address),
            Err(Undelivered::Store(error)) => return Err(failure(&address, error)),
            Err(Undelivered::Spool(error)) => return Err(Failure::new(error)),
        }
    }
    let taken = taken.map_or_else(String::new, |address| address.to_string());
    Err(Failure::message(format!(
        "{taken} is there already, and is another recording's"
    )))
}

/// Ends an upload that a torchspy left behind when it was killed: its parts would be kept, and paid
/// for. Where that is not possible, the bucket's own rules for such uploads have to serve.
async fn abort_earlier(entry: &mut Entry) {
    let Some((address, id)) = entry.upload() else {
        return;
    };
    if let Ok(address) = Address::parse(&address)
        && let Ok(bucket) = address.bucket()
    {
        let _ = bucket.parts.abort_multipart(&address.key, &id).await;
    }
    let _ = entry.set_upload(None);
}

/// Why nothing was sent.
enum Undelivered {
    Store(Error),
    Spool(io::Error),
}

impl From<Error> for Undelivered {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Undelivered {
    fn from(error: io::Error) -> Self {
        Self::Spool(error)
    }
}

struct Delivery<'d> {
    address: &'d Address,
    bucket: &'d Bucket,
    file: &'d File,
    length: u64,
}

impl Delivery<'_> {
    /// Returns whether it was sent; else the address is another's.
    async fn run(&self, entry: &mut Entry) -> Result<bool, Undelivered> {
        let placed = match entry.force() {
            true => 0,
            false => match self.place().await? {
                Some(placed) => placed,
                None => return Ok(false),
            },
        };
        entry.set_placed(self.address)?;
        if placed == self.length && !entry.force() {
            return Ok(true);
        }
        if self.length <= PART {
            let whole = self.read(0)?;
            let put = || self.bucket.objects.put(&self.address.key, whole.clone());
            persist(SENDING, put).await?;
        } else {
            self.send_parts(entry).await?;
        }
        Ok(true)
    }

    /// Takes the address if it is free, by what there is of the recording. Returns how much of it
    /// is there; `None` if the address is taken.
    async fn place(&self) -> Result<Option<u64>, Undelivered> {
        if let Some(found) = self.head().await? {
            return self.own_part(&found).await;
        }
        let first = self.read(0)?;
        let length = first.content_length() as u64;
        let created = persist(SENDING, || {
            let create = PutMode::Create.into();
            self.bucket
                .objects
                .put_opts(&self.address.key, first.clone(), create)
        });
        match created.await {
            Ok(_) => Ok(Some(length)),
            // By this torchspy, if the answer was lost, or by another just now.
            Err(Error::AlreadyExists { .. }) => match self.head().await? {
                Some(found) => self.own_part(&found).await,
                None => Ok(None),
            },
            // The store cannot check this itself: it was free a moment ago.
            Err(Error::NotImplemented { .. }) => Ok(Some(0)),
            Err(error) => Err(error.into()),
        }
    }

    async fn head(&self) -> Result<Option<ObjectMeta>> {
        match persist(SENDING, || self.bucket.objects.head(&self.address.key)).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The length of an object that is an earlier part of this recording; `None` if it is not.
    async fn own_part(&self, found: &ObjectMeta) -> Result<Option<u64>, Undelivered> {
        let compared = found.size.min(HEAD);
        if compared == 0 || found.size > self.length {
            return Ok(None);
        }
        let get = || {
            self.bucket
                .objects
                .get_range(&self.address.key, 0..compared)
        };
        let theirs = persist(SENDING, get).await?;
        let mut own = vec![0; theirs.len()];
        self.file.read_exact_at(&mut own, 0)?;
        Ok((theirs == own).then_some(found.size))
    }

    /// A part of the file from this offset on.
    fn read(&self, from: u64) -> io::Result<PutPayload> {
        let mut bytes = vec![0; (self.length - from).min(PART) as usize];
        self.file.read_exact_at(&mut bytes, from)?;
        Ok(bytes.into())
    }

    async fn send_parts(&self, entry: &mut Entry) -> Result<(), Undelivered> {
        let (key, store) = (&self.address.key, &self.bucket.parts);
        let id = persist(SENDING, || store.create_multipart(key)).await?;
        entry.set_upload(Some((self.address, &id)))?;
        let mut parts = Vec::new();
        for from in (0..self.length).step_by(PART as usize) {
            let part = self.read(from)?;
            let put = || store.put_part(key, &id, parts.len(), part.clone());
            let sent = persist(SENDING, put).await?;
            parts.push(sent);
        }
        let completed = persist(SENDING, || {
            store.complete_multipart(key, &id, parts.clone())
        })
        .await;
        match completed {
            Ok(_) => {}
            // If an earlier answer was lost, the upload has ended.
            Err(_)
                if self
                    .head()
                    .await?
                    .is_some_and(|found| found.size == self.length) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(entry.set_upload(None)?)
    }
}
