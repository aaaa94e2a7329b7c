//! How to reach etcd, checked: what the configuration says, and the files that it names. Called by the assembly.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, Identity, TlsOptions};

use super::OpenError;
use crate::config::{Password, read_secret};

/// What an [`super::Agent`] needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the members answer: `http://HOST:PORT` or `https://HOST:PORT`. All of one kind.
    pub endpoints: Vec<String>,
    /// Where the keys stand; ends with a slash. Instances of one gate share it, and nobody else.
    pub prefix: String,
    /// The lease on the owner's key, in whole seconds; etcd may make it longer.
    pub owner_ttl: Duration,
    /// The user to log in as.
    pub login: Option<Login>,
    /// The certificates of `https` endpoints.
    pub tls: Option<Tls>,
    /// How long a request may take effect after the end of this instance (A4).
    pub settle_after: Duration,
    /// Who this is, for people: host and process.
    pub instance: String,
}

/// A user of etcd. A file is read with each login, so that a new password needs no restart.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user's name.
    pub username: String,
    /// Where the password is.
    pub password: Password,
}

/// Certificates towards etcd. The files are read with each connection, so that renewed ones need no restart.
#[derive(Clone, Default, Debug)]
pub struct Tls {
    /// Those who may sign etcd's certificates; without it those that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// This instance's certificate and key, where etcd wants one.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// The name in etcd's certificates, where it is not that of the endpoint.
    pub server_name: Option<String>,
}

impl Settings {
    /// Whether they can be used at all.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let wrong = |what: String| Err(OpenError::Settings(what));
        if self.endpoints.is_empty() {
            return wrong("there is no endpoint; name at least one, like http://127.0.0.1:2379".to_owned());
        }
        for endpoint in &self.endpoints {
            let secure = endpoint.starts_with("https://");
            if !secure && !endpoint.starts_with("http://") {
                return wrong(format!(
                    "the endpoint {endpoint:?} starts neither with http:// nor with https://"
                ));
            }
            if !secure && self.tls.is_some() {
                return wrong(format!(
                    "there are certificates, but the endpoint {endpoint:?} is not https://"
                ));
            }
        }
        if !self.prefix.ends_with('/') {
            return wrong(format!("the prefix {:?} does not end with a slash", self.prefix));
        }
        if self.owner_ttl < TTL_MIN {
            return wrong(format!(
                "the owner's lease of {:?} is too short; {TTL_MIN:?} at least",
                self.owner_ttl
            ));
        }
        Ok(())
    }

    /// The lease as etcd takes it, rounded up.
    pub(super) fn ttl_seconds(&self) -> i64 {
        let whole = self.owner_ttl.as_millis().div_ceil(1000);
        i64::try_from(whole).unwrap_or(i64::MAX)
    }

    /// The same for a renewal, which is small: several tries fit into a lease.
    pub(super) fn renewal_deadline(&self) -> Duration {
        (self.owner_ttl / 6).clamp(RENEWAL_MIN, DEADLINE)
    }
}

impl Login {
    pub(super) fn password(&self) -> Result<String, String> {
        match &self.password {
            Password::Given(secret) => Ok(secret.reveal().to_owned()),
            Password::File(path) => Ok(read_secret(path)?.reveal().to_owned()),
        }
    }
}

impl Tls {
    pub(super) fn options(&self) -> Result<TlsOptions, String> {
        let mut options = match &self.ca_file {
            Some(file) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(file)?)),
            None => TlsOptions::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.pair {
            options = options.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            options = options.domain_name(name);
        }
        Ok(options)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error: io::Error| format!("{}: {error}", path.display()))
}

/// etcd itself makes shorter leases longer, as its election timeout asks for.
const TTL_MIN: Duration = Duration::from_secs(2);
const RENEWAL_MIN: Duration = Duration::from_millis(300);
/// How long one question may take before the next member is asked.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);
