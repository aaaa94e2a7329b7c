//! The `store` map: where the marks are durable. Called by `build.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::build::words;
use super::reader::{Map, Placed, Reader, Word};
use super::secret;
use super::types::{EtcdStore, EtcdTls, EtcdUser, Password, Store};
use super::units::{self, Url};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Etcd,
    Memory,
}

words!(Kind: "file" => Kind::File, "etcd" => Kind::Etcd, "memory" => Kind::Memory);

/// The keys that one kind alone has.
const OF_FILE: &[&str] = &["path"];
const OF_ETCD: &[&str] = &[
    "endpoints",
    "prefix",
    "owner_ttl",
    "username",
    "password",
    "password_file",
    "tls",
];

/// The checked store; `None` where a problem was reported.
pub(super) fn store(reader: &mut Reader, root: &Map<'_>) -> Option<Store> {
    let map = reader.section(root, "store")?;
    let kind = reader.choice(&map, "kind")?;
    let fits = only_its_keys(reader, &map, kind);
    let store = match kind {
        Kind::File => reader.value(&map, "path", units::text).map(|path| Store::File {
            path: PathBuf::from(path),
        }),
        Kind::Etcd => etcd(reader, &map).map(Store::Etcd),
        Kind::Memory => {
            reader.warn(map.at, "store: the marks of kind: memory are lost at exit, and with them all fencing of what came before");
            Some(Store::Memory)
        }
    };
    store.filter(|_| fits)
}

/// A key of another kind would do nothing, and somebody meant it.
fn only_its_keys(reader: &mut Reader, map: &Map<'_>, kind: Kind) -> bool {
    let of_others = OF_FILE
        .iter()
        .map(|name| (*name, Kind::File, "file"))
        .chain(OF_ETCD.iter().map(|name| (*name, Kind::Etcd, "etcd")));
    let mut fits = true;
    for (name, of, word) in of_others {
        if map.has(name) && of != kind {
            fits = false;
            let message = format!("{} is for kind: {word}", map.path_to(name));
            reader.problem(map.place_of(name), message);
        }
    }
    fits
}

fn etcd(reader: &mut Reader, map: &Map<'_>) -> Option<EtcdStore> {
    let endpoints = endpoints(reader, map);
    let prefix = reader.value(map, "prefix", prefix);
    let owner_ttl = reader.value(map, "owner_ttl", lease);
    let user = user(reader, map);
    let tls = tls(reader, map);
    let (endpoints, tls) = (endpoints?, tls?);
    let secure = endpoints.iter().any(|url| url.starts_with("https://"));
    if map.has("tls") && !secure {
        let message = format!(
            "{} is for endpoints with https://, and {} says otherwise",
            map.path_to("tls"),
            map.path_to("endpoints"),
        );
        reader.problem(map.place_of("tls"), message);
        return None;
    }
    Some(EtcdStore {
        endpoints,
        prefix: prefix?,
        owner_ttl: owner_ttl?,
        user: user?,
        tls,
    })
}

fn endpoints(reader: &mut Reader, map: &Map<'_>) -> Option<Vec<String>> {
    if !map.has("endpoints") {
        let message = "store.endpoints is missing: kind: etcd needs the URLs of its members, as [\"http://127.0.0.1:2379\"]";
        reader.problem(map.at, message);
        return None;
    }
    let placed = reader.values(map, "endpoints", endpoint)?;
    let secure = |url: &Placed<String>| url.value.starts_with("https://");
    let first = placed.first()?; // an empty list was reported
    if let Some(other) = placed.iter().find(|url| secure(url) != secure(first)) {
        let message = "store.endpoints: either all are http:// or all are https://: else what is meant to be secret could go out in clear";
        reader.problem(other.at, message);
        return None;
    }
    for (at, url) in placed.iter().enumerate() {
        if placed[..at].iter().any(|before| before.value == url.value) {
            let message = format!("store.endpoints: {} stands there twice", url.value);
            reader.problem(url.at, message);
            return None;
        }
    }
    Some(placed.into_iter().map(|url| url.value).collect())
}

/// One member's URL, with its port.
fn endpoint(text: &str) -> Result<String, String> {
    const RIGHT: &str = "write a member's URL as http://HOST:PORT or https://HOST:PORT";
    let shown = |scheme: &str, host: &str, port: u16| match host.contains(':') {
        true => format!("{scheme}://[{host}]:{port}"),
        false => format!("{scheme}://{host}:{port}"),
    };
    let has_port = |text: &str| {
        let authority = text
            .split_once("//")
            .map_or("", |(_, rest)| rest.trim_end_matches('/'));
        authority
            .rsplit(':')
            .next()
            .is_some_and(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
    };
    match units::url(text) {
        Ok(Url::Http { host, port }) if has_port(text) => Ok(shown("http", &host, port)),
        Ok(Url::Https { host, port }) if has_port(text) => Ok(shown("https", &host, port)),
        Ok(Url::Http { .. } | Url::Https { .. }) => {
            Err(format!("{text:?} has no port; etcd's is usually 2379; {RIGHT}"))
        }
        Ok(Url::Unix(_)) | Err(_) if text.contains('@') => Err(format!(
            "a member's URL has no user or password: those are store.username and store.password_file; {RIGHT}"
        )),
        Ok(Url::Unix(_)) | Err(_) => Err(format!(
            "{text:?} is not the URL of one member of etcd; {RIGHT}, each as an entry of its own"
        )),
    }
}

/// What all keys start with. Ends in a slash, so that no other prefix lies within it by accident.
fn prefix(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 256;
    let sound = text.len() > 1
        && text.len() <= BYTES_MAX
        && text.starts_with('/')
        && text.ends_with('/')
        && !text.chars().any(char::is_control);
    // Below `mark/` and `audit/` of another prefix its keys would be taken for marks.
    if text.split('/').any(|part| matches!(part, "mark" | "audit")) {
        return Err(format!(
            "{text:?} could lie within another prefix: its marks stand below mark/, its audit trail below audit/"
        ));
    }
    sound.then(|| text.to_owned()).ok_or_else(|| {
        format!("{text:?} is not a prefix; it starts and ends with a slash and has a name in between, as /fencegate/default/, and has at most {BYTES_MAX} bytes")
    })
}

/// The lease's length, in whole seconds, as etcd counts.
fn lease(text: &str) -> Result<Duration, String> {
    let asked = units::some_duration(text)?;
    let whole = asked.subsec_nanos() == 0;
    let bounded = (LEASE_MIN..=LEASE_MAX).contains(&asked);
    if whole && bounded {
        return Ok(asked);
    }
    Err(format!(
        "{text:?} is out of bounds; etcd counts leases in whole seconds, and the owner's may have {} to {}",
        LEASE_MIN.as_secs(),
        LEASE_MAX.as_secs()
    ))
}

/// Below, one slow election of etcd's would end it.
const LEASE_MIN: Duration = Duration::from_secs(2);
const LEASE_MAX: Duration = Duration::from_secs(3600);

#[allow(clippy::option_option)]
fn user(reader: &mut Reader, map: &Map<'_>) -> Option<Option<EtcdUser>> {
    let password = password(reader, map)?;
    if !map.has("username") {
        if password.is_some() {
            let name = ["password", "password_file"]
                .into_iter()
                .find(|name| map.has(name))
                .unwrap_or("password");
            let message = format!("{} needs username beside it", map.path_to(name));
            reader.problem(map.place_of(name), message);
            return None;
        }
        return Some(None);
    }
    let name = reader.value(map, "username", units::text)?;
    let Some(password) = password else {
        let message = format!(
            "{} needs password_file, or password, beside it",
            map.path_to("username")
        );
        reader.problem(map.place_of("username"), message);
        return None;
    };
    Some(Some(EtcdUser { name, password }))
}

#[allow(clippy::option_option)]
fn password(reader: &mut Reader, map: &Map<'_>) -> Option<Option<Password>> {
    if map.has("password") && map.has("password_file") {
        let message = "store.password and store.password_file are two places for one secret; keep one";
        reader.problem(map.place_of("password"), message);
        return None;
    }
    if map.has("password") {
        let given = reader.value(map, "password", secret::inline)?;
        return Some(Some(Password::Given(given)));
    }
    if secret::below(reader, map, "password_file")?.is_none() {
        return Some(None);
    }
    let path = reader.value(map, "password_file", units::text)?;
    Some(Some(Password::File(PathBuf::from(path))))
}

fn tls(reader: &mut Reader, above: &Map<'_>) -> Option<EtcdTls> {
    if !above.has("tls") {
        return Some(EtcdTls::default());
    }
    let map = reader.section(above, "tls")?;
    let [ca, cert, key] = ["ca_file", "cert_file", "key_file"].map(|name| file(reader, &map, name));
    let server_name = match map.has("server_name") {
        true => Some(reader.value(&map, "server_name", units::text)?),
        false => None,
    };
    let (ca_file, cert, key) = (ca?, cert?, key?);
    for (there, lacks) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if map.has(there) && !map.has(lacks) {
            let message = format!("{} needs {lacks} beside it", map.path_to(there));
            reader.problem(map.place_of(there), message);
            return None;
        }
    }
    Some(EtcdTls {
        ca_file,
        pair: cert.zip(key),
        server_name,
    })
}

/// A file that can be read now; the inner `None` where none is named.
#[allow(clippy::option_option)]
fn file(reader: &mut Reader, map: &Map<'_>, name: &str) -> Option<Option<PathBuf>> {
    if !map.has(name) {
        return Some(None);
    }
    let placed = reader.placed(map, name, units::text)?;
    match std::fs::read(Path::new(&placed.value)) {
        Ok(_) => Some(Some(PathBuf::from(placed.value))),
        Err(error) => {
            let message = format!(
                "{}: {}: the file can't be read: {error}",
                map.path_to(name),
                placed.value
            );
            reader.problem(placed.at, message);
            None
        }
    }
}
