//! What receivers of OTLP profiles take, such as the OpenTelemetry Collector: OTLP/HTTP with
//! protobuf.
//!
//! Source: "OTLP/HTTP" of OpenTelemetry's specification (opentelemetry-proto 1.10.0,
//! docs/specification.md), and the path of the signal in the Collector's receiver
//! (receiver/otlpreceiver/factory.go).

use super::push::{Interval, Message, Receiver};
use crate::model::profile::Profile;
use crate::report::otlp;
use anyhow::{Result, bail};
use flate2::{Compression, write::GzEncoder};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message as _;
use std::io::Write;

pub(crate) const OTLP: Receiver = Receiver {
    name: "otlp",
    path: "/v1development/profiles",
    message,
    check,
};

fn message(interval: &Interval, profile: &Profile) -> Result<Option<Message>> {
    let Some(request) = otlp::request(profile, interval.job.as_deref()) else {
        return Ok(None);
    };
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&request)?;
    Ok(Some(Message {
        query: Vec::new(),
        head: &[
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "gzip"),
        ],
        body: gzip.finish()?,
    }))
}

/// A receiver that took a part says so in an answer that is a success otherwise.
fn check(answer: &[u8]) -> Result<()> {
    let answer = ExportProfilesServiceResponse::decode(answer)?;
    match answer.partial_success {
        Some(partial) if partial.rejected_profiles > 0 => bail!(
            "{} profiles were rejected: {}",
            partial.rejected_profiles,
            partial.error_message
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;

    #[test]
    fn what_was_rejected_is_an_error() {
        let answer = |rejected_profiles| {
            let partial = ExportProfilesPartialSuccess {
                rejected_profiles,
                error_message: "no room".to_owned(),
            };
            let answer = ExportProfilesServiceResponse {
                partial_success: Some(partial),
            };
            check(&answer.encode_to_vec())
        };
        assert!(check(&[]).is_ok());
        assert!(answer(0).is_ok());
        let error = answer(1).unwrap_err().to_string();
        assert_eq!(error, "1 profiles were rejected: no room");
        assert!(check(b"<html>").is_err());
    }
}
