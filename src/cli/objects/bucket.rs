//! A bucket of object storage.

use super::address::{Address, Provider};
use crate::cli::failure::Failure;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::{BackoffConfig, Error, ObjectStore, RetryConfig};
use reqwest::Url;
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
            Provider::S3 => {
                let builder = AmazonS3Builder::from_env();
                check_endpoint(builder.get_config_value(&AmazonS3ConfigKey::Endpoint))?;
                let builder = builder.with_bucket_name(name).with_retry(retries);
                builder.build().map(Self::new)
            }
            Provider::Google => {
                let builder = GoogleCloudStorageBuilder::from_env();
                check_endpoint(builder.get_config_value(&GoogleConfigKey::BaseUrl))?;
                let builder = builder.with_bucket_name(name).with_retry(retries);
                builder.build().map(Self::new)
            }
            Provider::Azure => {
                let builder = MicrosoftAzureBuilder::from_env();
                check_endpoint(builder.get_config_value(&AzureConfigKey::Endpoint))?;
                let builder = builder.with_container_name(name).with_retry(retries);
                builder.build().map(Self::new)
            }
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

/// An error for an address of a server that is none: object_store 0.14 panics at it.
fn check_endpoint(named: Option<String>) -> Result<(), Failure> {
    let Some(named) = named else { return Ok(()) };
    let is_server = Url::parse(&named)
        .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if is_server {
        return Ok(());
    }
    Err(Failure::usage(
        format!("the environment names {named:?} as the server of object storage"),
        "AWS_ENDPOINT_URL, GOOGLE_BASE_URL and AZURE_STORAGE_ENDPOINT are http://HOST:PORT or https://HOST",
    ))
}

/// What a store answered, and what to do about it.
pub(super) fn failure(address: &Address, error: Error) -> Failure {
    let variables = match address.provider {
        Provider::S3 => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; AWS_ALLOW_HTTP=true for http://"
        }
        Provider::Google => "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT_KEY",
        Provider::Azure => {
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; AZURE_ALLOW_HTTP=true for http://"
        }
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
