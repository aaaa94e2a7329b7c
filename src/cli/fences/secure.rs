//! TLS towards the admin address: whom the client trusts, and what it shows.

use std::path::PathBuf;

use crate::cli::failed::Failed;
use crate::net::{ClientFiles, ClientTls, Unfit};

/// The files, as they were named.
#[derive(clap::Args)]
pub(super) struct Secure {
    /// The authorities that vouch for an admin address with https:// [default: this machine's].
    #[arg(long, global = true, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The certificate that the admin address is shown.
    #[arg(long, global = true, value_name = "FILE")]
    cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// What the admin address's certificate must be for [default: the host that is asked].
    #[arg(long, global = true, value_name = "NAME")]
    server_name: Option<String>,
}

impl Secure {
    /// TLS towards `HOST:PORT`, or none.
    pub(super) fn load(&self, address: &str, wanted: bool) -> Result<Option<ClientTls>, Failed> {
        let pair = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(Failed::wrong("--cert-file needs --key-file beside it")),
            (None, Some(_)) => return Err(Failed::wrong("--key-file needs --cert-file beside it")),
        };
        if !wanted {
            return match self.ca_file.is_some() || pair.is_some() || self.server_name.is_some() {
                true => Err(Failed::wrong(format!(
                    "certificates are for TLS; write the address as https://{address}"
                ))),
                false => Ok(None),
            };
        }
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let files = ClientFiles {
            ca: self.ca_file.clone(),
            pair,
        };
        let loaded = ClientTls::load(files, self.server_name.as_deref().unwrap_or(host));
        loaded.map(Some).map_err(|unfit| self.wrong(&unfit))
    }

    fn wrong(&self, unfit: &Unfit) -> Failed {
        let option = match unfit.key {
            "server_name" if self.server_name.is_none() => "--admin".to_owned(),
            key => format!("--{}", key.replace('_', "-")),
        };
        Failed::wrong(format!("{option}: {unfit}"))
    }
}
