//! The `tls` maps and the addresses of backends: files are read here, so that a missing or mismatched one is a
//! problem at its line and column. Called by `build.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::reader::{Map, Placed, Reader};
use super::types::Target;
use super::units::{self, Url};
use crate::net::{ClientFiles, ClientTls, ServerFiles, ServerTls, Unfit, Watched};

/// What is behind a listener's TLS, the best protocol first.
pub(super) const HTTP: &[&[u8]] = &[b"h2", b"http/1.1"];

/// What is behind that of a listener of raw TCP: whatever its clients and its backend agree on.
pub(super) const ANY: &[&[u8]] = &[];

/// What is behind the admin address's.
pub(super) const HTTP_1: &[&[u8]] = &[b"http/1.1"];

/// What is behind a listener's that doesn't speak HTTP: nothing is agreed on.
pub(super) const NO_PROTOCOL: &[&[u8]] = &[];

/// TLS towards clients; the inner `None` where the key isn't there. The outer one says that a problem was reported.
#[allow(clippy::option_option)]
pub(super) fn server(
    reader: &mut Reader,
    above: &Map<'_>,
    alpn: &'static [&'static [u8]],
) -> Option<Option<Arc<ServerTls>>> {
    if !above.has("tls") {
        return Some(None);
    }
    let map = reader.section(above, "tls")?;
    let cert = path(reader, &map, "cert_file");
    let key = path(reader, &map, "key_file");
    let client_ca = path(reader, &map, "client_ca_file");
    if map.has("client_ca_file") && client_ca.is_none() {
        return None;
    }
    let files = ServerFiles {
        cert: cert?,
        key: key?,
        client_ca,
    };
    let tls = report(reader, &map, ServerTls::load(files, alpn))?;
    warn_if_expired(reader, &map, &tls);
    Some(Some(Arc::new(tls)))
}

/// Where a backend is, and TLS towards it.
pub(super) struct Place {
    pub(super) target: Target,
    pub(super) scheme: &'static str,
    pub(super) tls: Option<Arc<ClientTls>>,
}

/// Reads where an HTTP backend is.
pub(super) fn backend(reader: &mut Reader, map: &Map<'_>) -> Option<Place> {
    let url = reader.placed(map, "url", units::url)?;
    let (target, name) = match url.value {
        Url::Http { host, port } => (Target::Tcp { host, port }, None),
        Url::Https { host, port } => {
            let name = Placed {
                at: url.at,
                value: host.clone(),
            };
            (Target::Tcp { host, port }, Some(name))
        }
        Url::Unix(path) => (Target::Unix { path }, None),
    };
    let Some(name) = name else {
        if map.has("tls") {
            let message = format!(
                "{} is for a backend with https://, and {} says otherwise",
                map.path_to("tls"),
                map.path_to("url"),
            );
            reader.problem(map.place_of("tls"), message);
            return None;
        }
        return Some(Place {
            target,
            scheme: "http",
            tls: None,
        });
    };
    Some(Place {
        target,
        scheme: "https",
        tls: Some(client(reader, map, name)?),
    })
}

/// Reads where a backend is that doesn't speak HTTP. TLS towards it is on where there is `tls`, if only `tls: {}`: no
/// scheme says so.
pub(super) fn stream_backend(reader: &mut Reader, map: &Map<'_>) -> Option<Place> {
    let url = reader.placed(map, "url", units::stream_url)?;
    let tls = match (&url.value, map.has("tls")) {
        (_, false) => None,
        (Target::Tcp { host, .. }, true) => {
            let name = Placed {
                at: url.at,
                value: host.clone(),
            };
            Some(client(reader, map, name)?)
        }
        (Target::Unix { .. }, true) => {
            let message = format!(
                "{} is for a backend with tcp://, and {} says otherwise",
                map.path_to("tls"),
                map.path_to("url"),
            );
            reader.problem(map.place_of("tls"), message);
            return None;
        }
    };
    Some(Place {
        target: url.value,
        scheme: "tcp",
        tls,
    })
}

fn client(reader: &mut Reader, above: &Map<'_>, host: Placed<String>) -> Option<Arc<ClientTls>> {
    let map = reader.section(above, "tls")?;
    let [ca, cert, key] = ["ca_file", "cert_file", "key_file"].map(|name| {
        let path = path(reader, &map, name);
        (!map.has(name) || path.is_some()).then_some(path)
    });
    let name = match map.has("server_name") {
        true => reader.placed(&map, "server_name", units::text),
        false => Some(host),
    };
    let (ca, cert, key, name) = (ca?, cert?, key?, name?);
    for (there, lacks) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if map.has(there) && !map.has(lacks) {
            let message = format!("{} needs {lacks} beside it", map.path_to(there));
            reader.problem(map.place_of(there), message);
            return None;
        }
    }
    let files = ClientFiles {
        ca,
        pair: cert.zip(key),
    };
    let loaded = ClientTls::load(files, &name.value);
    let loaded = match loaded {
        // The name comes from the URL, and so does its problem.
        Err(unfit) if unfit.key == "server_name" && !map.has("server_name") => {
            reader.problem(name.at, format!("{}: {}", above.path_to("url"), unfit.what));
            return None;
        }
        other => other,
    };
    let tls = report(reader, &map, loaded)?;
    warn_if_expired(reader, &map, &tls);
    Some(Arc::new(tls))
}

fn path(reader: &mut Reader, map: &Map<'_>, name: &str) -> Option<PathBuf> {
    reader.value(map, name, units::text).map(PathBuf::from)
}

fn report<T>(reader: &mut Reader, map: &Map<'_>, loaded: Result<T, Unfit>) -> Option<T> {
    loaded
        .map_err(|unfit| {
            let message = format!("{}: {}", map.path_to(unfit.key), unfit.what);
            reader.problem(map.value_place_of(unfit.key), message);
        })
        .ok()
}

fn warn_if_expired(reader: &mut Reader, map: &Map<'_>, tls: &dyn Watched) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let Some(not_after) = tls.not_after() else { return };
    if not_after < i64::try_from(now).unwrap_or(i64::MAX) {
        let message = format!(
            "{}: the certificate has expired, and whoever verifies it will refuse it",
            map.path_to("cert_file")
        );
        reader.warn(map.value_place_of("cert_file"), message);
    }
}
