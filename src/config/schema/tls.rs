//! The keys of TLS, on each side.

use super::Kind::Value;
use super::State::{Optional, Required};
use super::{Section, key};

pub(super) static SERVER_TLS: Section = Section {
    what: "tls",
    keys: &[
        key(
            "cert_file",
            Value("a file"),
            Required,
            "the certificate and those between it and its authority, in PEM",
        ),
        key(
            "key_file",
            Value("a file"),
            Required,
            "its private key, in PEM: PKCS#8, PKCS#1 or SEC1",
        ),
        key(
            "client_ca_file",
            Value("a file"),
            Optional,
            "clients must show a certificate of these authorities, in PEM",
        ),
    ],
};

pub(super) static CLIENT_TLS: Section = Section {
    what: "tls",
    keys: &[
        key(
            "ca_file",
            Value("a file"),
            Optional,
            "the authorities that vouch for the backend, in PEM; this machine's if left out",
        ),
        key(
            "cert_file",
            Value("a file"),
            Optional,
            "the certificate that the backend is shown, in PEM",
        ),
        key("key_file", Value("a file"), Optional, "its private key, in PEM"),
        key(
            "server_name",
            Value("a name"),
            Optional,
            "what the backend's certificate must be for; the host of url if left out",
        ),
    ],
};

pub(super) static ETCD_TLS: Section = Section {
    what: "tls",
    keys: &[
        key(
            "ca_file",
            Value("a file"),
            Optional,
            "the authorities that vouch for etcd, in PEM; this machine's if left out",
        ),
        key(
            "cert_file",
            Value("a file"),
            Optional,
            "the certificate that etcd is shown, in PEM",
        ),
        key("key_file", Value("a file"), Optional, "its private key, in PEM"),
        key(
            "server_name",
            Value("a name"),
            Optional,
            "what etcd's certificate must be for; an endpoint's host if left out",
        ),
    ],
};
