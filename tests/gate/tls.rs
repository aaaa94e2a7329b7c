//! An authority, its certificates as files, and both sides of TLS that trust it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;

/// A folder with an authority in `ca.pem`, and what it issues.
pub struct Pki {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub fn new() -> Pki {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "an authority of the tests");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let pki = Pki { folder, authority };
        pki.issue("server", &["localhost", "127.0.0.1", "::1"]);
        pki
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn show(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes `NAME.pem` and `NAME.key`, of a new pair for these names and addresses.
    pub fn issue(&self, name: &str, names: &[&str]) {
        self.issue_with(name, names, |_| {});
    }

    pub fn issue_with(&self, name: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let cert = params.signed_by(&key, &self.authority).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), cert.pem()).unwrap();
    }

    /// The listener's lines.
    pub fn listener(&self, name: &str) -> String {
        format!(
            "tls: {{ cert_file: {0}.pem, key_file: {0}.key }}",
            self.show(name)
        )
    }

    pub fn listener_asking_clients(&self, name: &str) -> String {
        let (name, ca) = (self.show(name), self.show("ca.pem"));
        format!("tls: {{ cert_file: {name}.pem, key_file: {name}.key, client_ca_file: {ca} }}")
    }

    /// The upstream's lines.
    pub fn upstream(&self) -> String {
        format!("tls: {{ ca_file: {} }}", self.show("ca.pem"))
    }

    /// A client that trusts this authority and shows `name`, if any.
    pub fn client(&self, name: Option<&str>) -> Arc<ClientConfig> {
        client_config(&self.path("ca.pem"), name.map(|name| self.pair(name)))
    }

    /// A server that shows `name`, and wants certificates of this authority if told so.
    pub fn server(&self, name: &str, asks_clients: bool) -> Arc<ServerConfig> {
        server_config(self.pair(name), asks_clients.then(|| self.path("ca.pem")))
    }

    fn pair(&self, name: &str) -> Pair {
        let cert = CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
        (cert, key)
    }
}

type Pair = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// A client that trusts what is in `ca`, and shows what another authority has issued.
pub fn client_config_of(ca: &Path, of: &Pki, name: &str) -> Arc<ClientConfig> {
    client_config(ca, Some(of.pair(name)))
}

fn roots(ca: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    Arc::new(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn client_config(ca: &Path, pair: Option<Pair>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(ca));
    Arc::new(match pair {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder.with_client_auth_cert(vec![cert], key).unwrap(),
    })
}

fn server_config(pair: Pair, client_ca: Option<PathBuf>) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots(&ca), provider());
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    Arc::new(builder.with_single_cert(vec![pair.0], pair.1).unwrap())
}
