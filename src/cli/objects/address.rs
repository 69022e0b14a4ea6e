//! Addresses of objects: `s3://bucket/key`.

use super::bucket::Bucket;
use crate::cli::failure::Failure;
use crate::cli::formats::Format;
use crate::cli::output_names::OutputFile;
use object_store::path::Path as Key;
use std::fmt;
use std::path::Path;

/// Who keeps a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    /// Amazon's protocol, which many others speak.
    S3,
    Google,
    Azure,
}

/// Schemes of addresses.
const SCHEMES: &[(&str, Provider)] = &[
    ("s3", Provider::S3),
    ("gs", Provider::Google),
    ("az", Provider::Azure),
];

/// An object, or all whose keys are below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    scheme: &'static str,
    pub(super) provider: Provider,
    /// Azure's container.
    pub(super) bucket: String,
    pub(super) key: Key,
}

impl Address {
    /// Whether an argument is an address, valid or not.
    pub(crate) fn is_meant_by(argument: &Path) -> bool {
        split(argument).is_some()
    }

    /// Whether an argument is the address of many recordings, not of one.
    pub(crate) fn is_folder(argument: &Path) -> bool {
        let is_recording = argument
            .extension()
            .is_some_and(|extension| extension == Format::Recording.extension());
        Self::is_meant_by(argument) && !is_recording
    }

    /// # Errors
    /// It has no bucket, or a key that object storage does not have.
    pub(crate) fn parse(argument: &Path) -> Result<Self, Failure> {
        let shown = argument.display();
        let malformed = |why: &dyn fmt::Display| {
            Failure::usage(format!("{shown}: {why}"), "s3://BUCKET/FOLDER/NAME.tspy")
        };
        let ((scheme, provider), rest) =
            split(argument).ok_or_else(|| malformed(&"it is no address of object storage"))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(malformed(&"it names no bucket"));
        }
        Ok(Self {
            scheme,
            provider,
            bucket: bucket.to_owned(),
            key: Key::parse(key).map_err(|error| malformed(&error))?,
        })
    }

    /// The object with this key in the same bucket.
    pub(super) fn with_key(&self, key: Key) -> Self {
        Self {
            key,
            ..self.clone()
        }
    }

    /// Prepares to use the bucket; nothing is asked of it yet.
    ///
    /// # Errors
    /// The environment's settings are not valid.
    pub(crate) fn bucket(&self) -> Result<Bucket, Failure> {
        Bucket::of(self)
    }

    /// The address as a path below a folder: `s3/bucket/key`.
    pub(super) fn as_path(&self) -> String {
        format!("{}/{}/{}", self.scheme, self.bucket, self.key)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}/{}", self.scheme, self.bucket, self.key)
    }
}

/// An error for outputs in object storage that are no recordings, or have no valid address.
pub(crate) fn check(outputs: &[OutputFile]) -> Result<(), Failure> {
    for output in outputs {
        if !Address::is_meant_by(&output.path) {
            continue;
        }
        let address = Address::parse(&output.path)?;
        if output.format != Format::Recording {
            return Err(Failure::usage(
                format!("{address}: only recordings (.tspy) are sent to object storage"),
                "torchspy convert s3://BUCKET/NAME.tspy -o NAME.html makes other formats of one",
            ));
        }
        if address.key.as_ref().is_empty() {
            return Err(Failure::usage(
                format!("{address} names no object"),
                "s3://BUCKET/FOLDER/NAME.tspy",
            ));
        }
    }
    Ok(())
}

/// The scheme of an address, and what follows it.
fn split(argument: &Path) -> Option<((&'static str, Provider), &str)> {
    let (scheme, rest) = argument.to_str()?.split_once("://")?;
    let known = SCHEMES.iter().find(|(known, _)| *known == scheme);
    known.map(|&known| (known, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_bucket_and_a_key() {
        for (text, path) in [
            ("s3://b/run/3.tspy", "s3/b/run/3.tspy"),
            ("gs://b/run/", "gs/b/run"),
            ("az://b", "az/b/"),
        ] {
            let address = Address::parse(Path::new(text)).unwrap();
            assert_eq!(address.as_path(), path);
        }
        for text in [
            "s3://",
            "s3:///x.tspy",
            "s3://b/../x.tspy",
            "s3://b/a//x",
            "x",
        ] {
            let failure = Address::parse(Path::new(text)).unwrap_err();
            assert_eq!(failure.status, 2, "{text}");
            assert!(failure.hint.is_some());
        }
    }

    #[test]
    fn files_and_other_schemes_are_no_addresses() {
        for text in ["run.tspy", "s3/b/x", "http://b/x.tspy", "s3:/b/x"] {
            assert!(!Address::is_meant_by(Path::new(text)), "{text}");
        }
        assert!(Address::is_folder(Path::new("s3://b/run")));
        assert!(!Address::is_folder(Path::new("s3://b/run/3.tspy")));
        assert!(!Address::is_folder(Path::new("runs")));
    }

    #[test]
    fn only_recordings_are_sent() {
        let output = |path: &str, format| OutputFile::new(path.into(), format);
        assert!(check(&[output("s3://b/{rank}.tspy", Format::Recording)]).is_ok());
        assert!(check(&[output("run.html", Format::Page)]).is_ok());
        for (path, format) in [
            ("s3://b/x.html", Format::Page),
            ("s3://b", Format::Recording),
        ] {
            assert_eq!(check(&[output(path, format)]).unwrap_err().status, 2);
        }
    }
}
