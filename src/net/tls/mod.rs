//! TLS from files: what a listener shows and asks for, and what a backend is shown and must show. The files are read
//! again when they change; connections that stand keep what they began with.
//!
//! `files.rs` reads and judges files, `held.rs` keeps what they made. Called by `config/`, which reports what doesn't
//! fit at its key, and by whoever opens or takes connections. Logs nothing: `server/` asks for changes and tells.

mod files;
mod held;
mod names;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use tokio::net::TcpStream;

use self::files::{Contents, authorities, system_authorities};
use self::held::Held;
pub use self::names::names;
use super::{Session, Stream};

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// Why files can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct Unfit {
    /// The key of the configuration that names the file.
    pub key: &'static str,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

/// What a look at the files brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refreshed {
    /// Nothing new.
    Same,
    /// They have changed, and new connections use them.
    Taken,
    /// They have changed and don't fit: what was there before stays in use. Said once for each change.
    Refused(Unfit),
}

/// Files that are looked at from time to time.
pub trait Watched: Send + Sync + fmt::Debug {
    /// Looks at the files, and takes them if they have changed and fit.
    fn refresh(&self) -> Refreshed;

    /// When the certificate in use expires, in seconds since 1970; `None` where there is none.
    fn not_after(&self) -> Option<i64>;
}

/// A listener's files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFiles {
    /// The certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Where there is one, clients must show a certificate of these authorities.
    pub client_ca: Option<PathBuf>,
}

/// TLS towards clients.
pub struct ServerTls {
    files: ServerFiles,
    alpn: &'static [&'static [u8]],
    held: Held<ServerConfig>,
}

impl ServerTls {
    /// Reads the files. `alpn` are the protocols behind it, the best one first.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn load(files: ServerFiles, alpn: &'static [&'static [u8]]) -> Result<ServerTls, Unfit> {
        let contents = server_contents(&files);
        let held = Held::new(&contents, |contents| server_config(contents, alpn))?;
        Ok(ServerTls { files, alpn, held })
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Shakes hands with a client. It waits as long as the client does: the caller bounds it.
    ///
    /// # Errors
    /// Those of the socket, and `InvalidData` where the client's TLS or certificate is not accepted.
    pub async fn accept(&self, socket: TcpStream) -> io::Result<Stream> {
        let tls = ServerConnection::new(self.held.get()).map_err(io::Error::other)?;
        Ok(Stream::tls(Session::open(socket, tls.into()).await?))
    }
}

impl Watched for ServerTls {
    fn refresh(&self) -> Refreshed {
        self.held.refresh(&server_contents(&self.files), |contents| {
            server_config(contents, self.alpn)
        })
    }

    fn not_after(&self) -> Option<i64> {
        self.held.not_after()
    }
}

fn server_contents(files: &ServerFiles) -> Contents {
    Contents::read([
        ("cert_file", Some(&files.cert)),
        ("key_file", Some(&files.key)),
        ("client_ca_file", files.client_ca.as_ref()),
    ])
}

fn server_config(contents: &Contents, alpn: &[&[u8]]) -> Result<(ServerConfig, Option<i64>), Unfit> {
    let (chain, key, not_after) = contents.pair(&PROVIDER)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions that it comes with");
    let builder = match contents.get("client_ca_file") {
        None => builder.with_no_client_auth(),
        Some(_) => {
            let roots = Arc::new(authorities(contents, "client_ca_file")?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&PROVIDER))
                .build()
                .map_err(|error| contents.unfit("client_ca_file", error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| contents.unfit("cert_file", error))?;
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok((config, Some(not_after)))
}

/// A backend's files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientFiles {
    /// Who vouches for the backend; the system's authorities if left out.
    pub ca: Option<PathBuf>,
    /// What the backend is shown: a certificate and its key.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// TLS towards a backend. It speaks HTTP/1.1 there.
pub struct ClientTls {
    files: ClientFiles,
    name: ServerName<'static>,
    /// The system's authorities, read once; where `ca` is given, none.
    system: Option<RootCertStore>,
    held: Held<ClientConfig>,
}

impl ClientTls {
    /// Reads the files. `name` is what the backend's certificate must be for: a name, or an address.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn load(files: ClientFiles, name: &str) -> Result<ClientTls, Unfit> {
        let name = server_name(name)?;
        let system = match files.ca {
            Some(_) => None,
            None => Some(system_authorities()?),
        };
        let contents = client_contents(&files);
        let held = Held::new(&contents, |contents| client_config(contents, system.as_ref()))?;
        Ok(ClientTls {
            files,
            name,
            system,
            held,
        })
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &ClientFiles {
        &self.files
    }

    /// What the backend's certificate must be for.
    #[must_use]
    pub fn server_name(&self) -> String {
        self.name.to_str().into_owned()
    }

    /// Shakes hands with the backend. It waits as long as the backend does: the caller bounds it.
    ///
    /// # Errors
    /// Those of the socket, and `InvalidData` where the backend's TLS or certificate is not accepted.
    pub async fn connect(&self, socket: TcpStream) -> io::Result<Stream> {
        let tls = ClientConnection::new(self.held.get(), self.name.clone()).map_err(io::Error::other)?;
        Ok(Stream::tls(Session::open(socket, tls.into()).await?))
    }
}

impl Watched for ClientTls {
    fn refresh(&self) -> Refreshed {
        self.held.refresh(&client_contents(&self.files), |contents| {
            client_config(contents, self.system.as_ref())
        })
    }

    fn not_after(&self) -> Option<i64> {
        self.held.not_after()
    }
}

/// A name in DNS, or an address without brackets.
fn server_name(name: &str) -> Result<ServerName<'static>, Unfit> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(ServerName::IpAddress(ip.into()));
    }
    ServerName::try_from(name.to_owned()).map_err(|_| Unfit {
        key: "server_name",
        what: format!("{name:?} is neither a name in DNS nor an address, and no certificate can be for it"),
    })
}

fn client_contents(files: &ClientFiles) -> Contents {
    Contents::read([
        ("cert_file", files.pair.as_ref().map(|(cert, _)| cert)),
        ("key_file", files.pair.as_ref().map(|(_, key)| key)),
        ("ca_file", files.ca.as_ref()),
    ])
}

fn client_config(
    contents: &Contents,
    system: Option<&RootCertStore>,
) -> Result<(ClientConfig, Option<i64>), Unfit> {
    let roots = match system {
        Some(system) => system.clone(),
        None => authorities(contents, "ca_file")?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions that it comes with")
        .with_root_certificates(roots);
    let (mut config, not_after) = match contents.get("cert_file") {
        None => (builder.with_no_client_auth(), None),
        Some(_) => {
            let (chain, key, not_after) = contents.pair(&PROVIDER)?;
            let config = builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| contents.unfit("cert_file", error))?;
            (config, Some(not_after))
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, not_after))
}

// What is shown are the paths: never what stands in the files.

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("files", &self.files)
            .field("name", &self.name)
            .finish()
    }
}

#[cfg(test)]
mod tests;
