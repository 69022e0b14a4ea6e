//! A bucket of object storage.

use super::address::{Address, Provider};
use crate::cli::failure::Failure;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::{BackoffConfig, Error, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// How long object_store itself tries one request again; [`super::retry`] has the whole time.
const RETRIES: Duration = Duration::from_secs(3);

/// Both views of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) parts: Arc<dyn Parts>,
}

/// Uploads in parts.
pub(super) trait Parts: MultipartStore + std::fmt::Debug {}

impl<T: MultipartStore + std::fmt::Debug> Parts for T {}

impl Bucket {
    pub(super) fn of(address: &Address) -> Result<Self, Failure> {
        // Another part of the process may have chosen one already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retries = RetryConfig {
            backoff: BackoffConfig {
                max_backoff: Duration::from_secs(2),
                ..BackoffConfig::default()
            },
            retry_timeout: RETRIES,
            ..RetryConfig::default()
        };
        let name = &address.bucket;
        let built = match address.provider {
            Provider::S3 => AmazonS3Builder::from_env()
                .with_bucket_name(name)
                .with_retry(retries)
                .build()
                .map(Self::new),
            Provider::Google => GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(name)
                .with_retry(retries)
                .build()
                .map(Self::new),
            Provider::Azure => MicrosoftAzureBuilder::from_env()
                .with_container_name(name)
                .with_retry(retries)
                .build()
                .map(Self::new),
        };
        built.map_err(|error| failure(address, error))
    }

    fn new(store: impl ObjectStore + MultipartStore) -> Self {
        let store = Arc::new(store);
        Self {
            objects: store.clone(),
            parts: store,
        }
    }
}

/// What a store answered, and what to do about it.
pub(super) fn failure(address: &Address, error: Error) -> Failure {
    let variables = match address.provider {
        Provider::S3 => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; AWS_ALLOW_HTTP=true for http://"
        }
        Provider::Google => "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT_KEY",
        Provider::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    };
    let hint = match &error {
        Error::NotFound { .. } => "the bucket has to be there: torchspy makes none".to_owned(),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            format!("check the credentials: {variables}")
        }
        _ => format!("check the network and the environment: {variables}"),
    };
    let context = format!("{address} can be neither read nor written");
    Failure::new(anyhow::Error::new(error).context(context)).hint(hint)
}
