//! The library's clients, with endpoint and credentials from the URL and the environment.

use std::sync::Arc;

use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use super::http::Connector;
use crate::error::{Error, Result};
use crate::store::location::{BucketUrl, Cloud};

/// The first of these variables that is set.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn region(found: &BucketUrl) -> String {
    let set = || variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
    found.region.clone().or_else(set).unwrap_or_else(|| "us-east-1".to_owned())
}

/// The account of Azure, also by the name that its own tool knows.
fn account(found: &BucketUrl) -> Option<String> {
    found.account.clone().or_else(|| variable(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]))
}

/// The endpoint that the URL or the environment names.
fn named_endpoint(found: &BucketUrl) -> Option<String> {
    let names: &[&str] = match found.cloud {
        Cloud::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
        Cloud::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        Cloud::Gcs => &["GOOGLE_BASE_URL"],
    };
    let named = found.endpoint.clone().or_else(|| variable(names));
    named.map(|endpoint| endpoint.trim_end_matches('/').to_owned())
}

/// Where requests go: to the endpoint that is named, or to the cloud's own.
pub(super) fn endpoint(found: &BucketUrl) -> String {
    named_endpoint(found).unwrap_or_else(|| match found.cloud {
        Cloud::S3 => format!("https://s3.{}.amazonaws.com", region(found)),
        Cloud::Azure => format!("https://{}.blob.core.windows.net", account(found).unwrap_or_default()),
        Cloud::Gcs => "https://storage.googleapis.com".to_owned(),
    })
}

/// The protocol repeats requests, with jitter.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, backoff: BackoffConfig::default(), ..RetryConfig::default() }
}

/// # Errors
/// [`Error::Invalid`].
pub(super) fn build(found: &BucketUrl, connector: Connector) -> Result<Arc<dyn ObjectStore>> {
    #[allow(unused_variables, reason = "a build with one kind of store has no use for all of them")]
    let (bucket, endpoint, retries) = (found.bucket.as_str(), named_endpoint(found), no_retries());
    #[allow(unused_variables, reason = "a build with all kinds of stores lacks none")]
    let lacking = |name: &str| -> Result<Arc<dyn ObjectStore>> {
        let what = format!("this build has no support for {name}; build it with the feature {name}");
        Err(Error::Invalid { what })
    };
    match found.cloud {
        #[cfg(feature = "s3")]
        Cloud::S3 => {
            use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
            let mut builder = AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_region(region(found))
                .with_allow_http(true)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                // Not every server that speaks like S3 knows the request that deletes many.
                .with_disable_bulk_delete(true)
                .with_http_connector(connector)
                .with_retry(retries);
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            done(builder.build(), "AWS_ACCESS_KEY_ID and the other variables of AWS")
        }
        #[cfg(not(feature = "s3"))]
        Cloud::S3 => lacking("s3"),
        #[cfg(feature = "azure")]
        Cloud::Azure => {
            use object_store::azure::MicrosoftAzureBuilder;
            let account = account(found);
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_account(account.ok_or_else(|| {
                    Error::Invalid {
                        what:
                            "the account is not named; set AZURE_STORAGE_ACCOUNT_NAME, or add ?account=NAME to the URL"
                                .to_owned(),
                    }
                })?)
                .with_allow_http(true)
                .with_http_connector(connector)
                .with_retry(retries);
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            if let Some(key) = variable(&["AZURE_STORAGE_KEY"]) {
                builder = builder.with_access_key(key);
            }
            done(builder.build(), "AZURE_STORAGE_ACCOUNT_KEY and the other variables of Azure")
        }
        #[cfg(not(feature = "azure"))]
        Cloud::Azure => lacking("azure"),
        #[cfg(feature = "gcs")]
        Cloud::Gcs => {
            use object_store::gcp::GoogleCloudStorageBuilder;
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_http_connector(connector)
                .with_retry(retries);
            if let Some(endpoint) = endpoint {
                builder = builder.with_base_url(&endpoint);
            }
            done(builder.build(), "GOOGLE_APPLICATION_CREDENTIALS and the other variables of Google")
        }
        #[cfg(not(feature = "gcs"))]
        Cloud::Gcs => lacking("gcs"),
    }
}

/// The library's words may have parts of a key that it cannot read, so they are not passed on.
fn done<S: ObjectStore>(built: object_store::Result<S>, variables: &str) -> Result<Arc<dyn ObjectStore>> {
    match built {
        Ok(store) => Ok(Arc::new(store)),
        Err(_) => Err(Error::Invalid { what: format!("the credentials cannot be read; check {variables}") }),
    }
}
