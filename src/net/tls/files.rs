//! Certificates, keys and authorities from files in PEM, and what is wrong with them.

use std::fmt::Display;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};
use siphasher::sip::SipHasher13;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Unfit;

/// The files of one side as they stood at one moment, each with its key in the configuration.
pub struct Contents(Vec<(&'static str, PathBuf, io::Result<Vec<u8>>)>);

/// Larger than any bundle of authorities.
const FILE_BYTES_MAX: u64 = 4 << 20;

impl Contents {
    /// Reads those that are named.
    pub fn read<const N: usize>(files: [(&'static str, Option<&PathBuf>); N]) -> Contents {
        let named = files.into_iter().filter_map(|(key, path)| Some((key, path?)));
        Contents(named.map(|(key, path)| (key, path.clone(), read(path))).collect())
    }

    /// A file's bytes or why there are none; `None` where none is named.
    pub fn get(&self, key: &str) -> Option<(&Path, Result<&[u8], &io::Error>)> {
        let found = self.0.iter().find(|(of, ..)| *of == key)?;
        Some((&found.1, found.2.as_deref()))
    }

    /// Differs where the contents do.
    pub fn print(&self) -> u64 {
        let mut hasher = SipHasher13::new();
        for (_, _, bytes) in &self.0 {
            match bytes {
                Ok(bytes) => {
                    hasher.write_usize(bytes.len());
                    hasher.write(bytes);
                }
                Err(error) => hasher.write(format!("{:?}", error.kind()).as_bytes()),
            }
        }
        hasher.finish()
    }

    /// What is wrong with the file of `key`.
    pub fn unfit(&self, key: &'static str, what: impl Display) -> Unfit {
        let path = self.get(key).map(|(path, _)| path.display().to_string());
        Unfit {
            key,
            what: format!("{}: {what}", path.unwrap_or_default()),
        }
    }

    fn bytes(&self, key: &'static str) -> Result<&[u8], Unfit> {
        match self.get(key) {
            Some((_, Ok(bytes))) => Ok(bytes),
            Some((_, Err(error))) => Err(self.unfit(key, format!("the file can't be read: {error}"))),
            None => Err(self.unfit(key, "no file is named")),
        }
    }

    fn certificates(&self, key: &'static str) -> Result<Vec<CertificateDer<'static>>, Unfit> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.bytes(key)?).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.unfit(
                key,
                "there is no certificate in it; it must be in PEM, with a line \"-----BEGIN CERTIFICATE-----\"",
            )),
            Ok(found) => Ok(found),
            Err(error) => Err(self.unfit(key, format!("it is not PEM: {error}"))),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, Unfit> {
        let bytes = self.bytes("key_file")?;
        PrivateKeyDer::from_pem_slice(bytes).map_err(|_| {
            self.unfit(
                "key_file",
                "there is no private key in it; it must be in PEM, as PKCS#8, PKCS#1 or SEC1, and without a passphrase",
            )
        })
    }

    /// A certificate with those that stand behind it, its key, and when it expires.
    pub fn pair(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, i64), Unfit> {
        let chain = self.certificates("cert_file")?;
        let key = self.key()?;
        let not_after = expiry(&chain[0]).map_err(|what| self.unfit("cert_file", what))?;
        match CertifiedKey::from_der(chain.clone(), key.clone_key(), provider) {
            Ok(_) => Ok((chain, key, not_after)),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(self.unfit("key_file", "the key is not that of the certificate in cert_file"))
            }
            Err(error) => Err(self.unfit("key_file", format!("the key can't be used: {error}"))),
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it is larger than {FILE_BYTES_MAX} bytes"
        )));
    }
    Ok(bytes)
}

fn expiry(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| format!("the certificate can't be read: {error}"))?;
    Ok(parsed.validity().not_after.timestamp())
}

/// The authorities in a file.
pub fn authorities(contents: &Contents, key: &'static str) -> Result<RootCertStore, Unfit> {
    let mut roots = RootCertStore::empty();
    for certificate in contents.certificates(key)? {
        roots
            .add(certificate)
            .map_err(|error| contents.unfit(key, format!("a certificate can't be read: {error}")))?;
    }
    Ok(roots)
}

/// The authorities that this machine trusts.
pub fn system_authorities() -> Result<RootCertStore, Unfit> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _unreadable) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(roots);
    }
    let why = found
        .errors
        .first()
        .map_or_else(String::new, |error| format!(" ({error})"));
    Err(Unfit {
        key: "ca_file",
        what: format!(
            "this machine has no certificates of authorities{why}, so no backend could be trusted; install them \
             (Debian: ca-certificates), or name a ca_file"
        ),
    })
}
