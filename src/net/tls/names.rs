//! What a verified certificate says of its owner.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::base::ClientCert;

/// The names in a certificate that was verified already; none where it can't be read.
pub fn names(certificate: &CertificateDer<'_>) -> ClientCert {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return ClientCert::default();
    };
    let mut commons = parsed.subject().iter_common_name();
    let common_name = match (commons.next(), commons.next()) {
        (Some(one), None) => one.as_str().ok().map(str::to_owned),
        _ => None,
    };
    let mut names = ClientCert {
        common_name,
        ..ClientCert::default()
    };
    let alternatives = parsed.subject_alternative_name().ok().flatten();
    for name in alternatives.iter().flat_map(|found| &found.value.general_names) {
        match name {
            GeneralName::DNSName(name) => names.dns_names.push((*name).to_owned()),
            GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
            _ => {}
        }
    }
    names
}
