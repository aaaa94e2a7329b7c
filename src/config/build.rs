//! The tree to checked types: what each key means, and what must hold between keys. Called by `mod.rs`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::reader::{Map, Placed, Reader, Word};
use super::rules::{self, Origin};
use super::schema::ROOT;
use super::secret;
use super::tls;
use super::tree::Node;
use super::types::{
    Admin, CommitPoint, Config, Errors, Limits, Listener, Log, LogFormat, LogLevel, Store, Target, Upstream,
};
use super::units;
use crate::base::Secret;
use crate::net::ServerTls;
use crate::rules::{Mode, Paths, Policy, Rule, RuleSet, SAFE_METHODS, Unmatched};

/// Builds the checked configuration; `None` where a problem was reported.
pub(super) fn config(reader: &mut Reader, node: &Node) -> Option<Config> {
    let root = reader.root(node, &ROOT)?;
    let version = reader.value(&root, "version", |text| match text {
        "1" => Ok(()),
        other => Err(format!("version {other:?} is not known; it is 1")),
    });
    let store = store(reader, &root);
    let admin = admin(reader, &root);
    let log = log(reader, &root);
    let shutdown_timeout = reader.value(&root, "shutdown_timeout", units::duration);
    let maps = reader.sections(&root, "listeners");
    let mut origins = Vec::new();
    let (mut headings, mut read) = (Vec::new(), Vec::new());
    for map in &maps {
        let heading = heading(reader, map);
        read.push(listener(reader, map, &heading, &mut origins));
        headings.push(heading);
    }
    check_headings(reader, &headings, admin.bind.as_ref());
    rules::check_across(reader, &origins);
    version?;
    let config = Config {
        store: store?,
        admin: Admin {
            bind: admin.bind?.value,
            tls: admin.tls?,
            token: admin.token?,
        },
        log: log?,
        shutdown_timeout: shutdown_timeout?,
        listeners: read.into_iter().collect::<Option<Vec<_>>>()?,
    };
    // An empty list was reported; a configuration without listeners is none.
    (!config.listeners.is_empty()).then_some(config)
}

enum StoreKind {
    File,
    Memory,
}

fn store(reader: &mut Reader, root: &Map<'_>) -> Option<Store> {
    let map = reader.section(root, "store")?;
    let kind = reader.choice(&map, "kind");
    let path = reader.value(&map, "path", units::text);
    match kind? {
        StoreKind::File => Some(Store::File {
            path: PathBuf::from(path?),
        }),
        StoreKind::Memory => {
            if map.has("path") {
                reader.problem(
                    map.place_of("path"),
                    "store.path is for kind: file; kind: memory has none",
                );
            }
            reader.warn(map.at, "store: the marks of kind: memory are lost at exit, and with them all fencing of what came before");
            Some(Store::Memory)
        }
    }
}

/// What is `None` was reported as a problem.
#[allow(clippy::option_option)]
#[derive(Default)]
struct AdminRead {
    bind: Option<Placed<SocketAddr>>,
    tls: Option<Option<Arc<ServerTls>>>,
    token: Option<Option<Secret>>,
}

fn admin(reader: &mut Reader, root: &Map<'_>) -> AdminRead {
    let Some(map) = reader.section(root, "admin") else {
        return AdminRead::default();
    };
    let bind = reader.placed(&map, "bind", units::bind);
    let tls = tls::server(reader, &map, tls::HTTP_1);
    let token = secret::below(reader, &map, "token_file");
    if let (Some(bind), Some(tls)) = (&bind, &tls) {
        check_admin(reader, bind, tls.as_deref(), map.has("token_file"));
    }
    AdminRead { bind, tls, token }
}

/// Beyond loopback it must be known who comes, and TLS by itself says only whom they come to.
fn check_admin(reader: &mut Reader, bind: &Placed<SocketAddr>, tls: Option<&ServerTls>, has_token: bool) {
    let shown = bind.value;
    if shown.ip().is_loopback() {
        return;
    }
    let without = match tls {
        None if has_token => {
            let message = format!(
                "admin.bind: {shown} is not a loopback address, and the token is sent there in the clear; admin.tls would hide it"
            );
            return reader.warn(bind.at, message);
        }
        Some(tls) if has_token || tls.files().client_ca.is_some() => return,
        Some(_) => "client_ca_file in its tls, or token_file,",
        None => "token_file, or tls with client_ca_file,",
    };
    let message = format!(
        "admin.bind: {shown} is not a loopback address, and without {without} anybody could reset a fence there; give it one, or write it as 127.0.0.1:9901"
    );
    reader.problem(bind.at, message);
}

fn log(reader: &mut Reader, root: &Map<'_>) -> Option<Log> {
    let map = reader.section(root, "log")?;
    let format = reader.choice(&map, "format");
    let level = reader.choice(&map, "level");
    Some(Log {
        format: format?,
        level: level?,
    })
}

fn heading(reader: &mut Reader, map: &Map<'_>) -> Heading {
    Heading {
        path: map.name().to_string(),
        name: reader.placed(map, "name", units::name),
        bind: reader.placed(map, "bind", units::bind),
    }
}

fn listener(
    reader: &mut Reader,
    map: &Map<'_>,
    heading: &Heading,
    origins: &mut Vec<Origin>,
) -> Option<Listener> {
    // The keys below a listener of another protocol are other ones: nothing more can be said about it.
    reader.choice::<Http>(map, "protocol")?;
    let errors = reader.choice(map, "errors");
    let paths = reader.choice(map, "paths");
    let upgrades = reader.choice::<Upgrades>(map, "upgrades");
    let tls = tls::server(reader, map, tls::HTTP);
    let upstream = upstream(reader, map);
    let limits = limits(reader, map);
    let forwarded = reader.value(map, "forwarded", units::flag);
    let unmatched = unmatched(reader, map);
    let safe_methods = safe_methods(reader, map);
    let rules = rules::read(reader, map, safe_methods.as_deref(), origins);
    warn_if_unfenced(reader, map, upgrades.as_ref(), rules.as_deref());
    let (bind, upstream) = (heading.bind.as_ref()?.value, upstream?);
    check_loop(reader, map, bind, &upstream);
    Some(Listener {
        name: heading.name.as_ref()?.value.as_str().into(),
        bind,
        tls: tls?,
        upstream,
        limits: limits?,
        upgrades: matches!(upgrades?, Upgrades::Pass),
        errors: errors?,
        forwarded: forwarded?,
        rules: Arc::new(RuleSet {
            rules: rules?,
            safe_methods: safe_methods?,
            paths: paths?,
            unmatched: unmatched?,
        }),
    })
}

fn warn_if_unfenced(reader: &mut Reader, map: &Map<'_>, upgrades: Option<&Upgrades>, rules: Option<&[Rule]>) {
    let fences = |rule: &Rule| rule.mode == Mode::Enforce && !rule.fences.is_empty();
    if matches!(upgrades, Some(Upgrades::Pass)) && rules.is_some_and(|rules| rules.iter().any(fences)) {
        let message = format!(
            "{}: nothing of an upgraded connection is fenced; right only where the store takes no writes that way",
            map.path_to("upgrades")
        );
        reader.warn(map.place_of("upgrades"), message);
    }
}

fn upstream(reader: &mut Reader, listener: &Map<'_>) -> Option<Upstream> {
    let map = reader.section(listener, "upstream")?;
    let backend = tls::backend(reader, &map);
    let connect_timeout = reader.value(&map, "connect_timeout", units::some_duration);
    let response_timeout = reader.value(&map, "response_timeout", units::some_duration);
    let settle_after = settle_after(reader, &map, response_timeout);
    let in_doubt_statuses = in_doubt_statuses(reader, &map);
    let commit_point = reader.choice(&map, "commit_point");
    let max_connections = reader.value(&map, "max_connections", units::count);
    let (target, tls) = backend?;
    Some(Upstream {
        target,
        tls,
        connect_timeout: connect_timeout?,
        response_timeout: response_timeout?,
        settle_after: settle_after?,
        in_doubt_statuses: in_doubt_statuses?,
        commit_point: commit_point?,
        max_connections: max_connections?,
    })
}

fn settle_after(reader: &mut Reader, map: &Map<'_>, response_timeout: Option<Duration>) -> Option<Duration> {
    if !map.has("settle_after") {
        return response_timeout;
    }
    let settle_after = reader.placed(map, "settle_after", units::some_duration)?;
    if response_timeout.is_some_and(|r| settle_after.value < r) {
        let message = format!(
            "{} is less than response_timeout ({:?} < {:?}): it must be no less than the longest that the backend works on one request",
            map.path_to("settle_after"),
            settle_after.value,
            response_timeout.unwrap_or_default(),
        );
        reader.warn(settle_after.at, message);
    }
    Some(settle_after.value)
}

fn in_doubt_statuses(reader: &mut Reader, map: &Map<'_>) -> Option<Vec<u16>> {
    if !map.has("in_doubt_statuses") {
        return Some(vec![502, 504]);
    }
    let mut statuses: Vec<u16> = reader
        .values(map, "in_doubt_statuses", units::status)?
        .into_iter()
        .map(|placed| placed.value)
        .collect();
    statuses.sort_unstable();
    statuses.dedup();
    Some(statuses)
}

fn limits(reader: &mut Reader, listener: &Map<'_>) -> Option<Limits> {
    let map = reader.section(listener, "limits")?;
    let header_timeout = reader.value(&map, "header_timeout", units::some_duration);
    let max_header_bytes = reader.value(&map, "max_header_bytes", units::head_size);
    let idle_timeout = reader.value(&map, "idle_timeout", units::some_duration);
    let max_waiting = reader.value(&map, "max_waiting", units::count);
    Some(Limits {
        header_timeout: header_timeout?,
        max_header_bytes: max_header_bytes?,
        idle_timeout: idle_timeout?,
        max_waiting: max_waiting?,
    })
}

fn unmatched(reader: &mut Reader, listener: &Map<'_>) -> Option<Unmatched> {
    let map = reader.section(listener, "unmatched")?;
    let reads = reader.choice(&map, "reads");
    let writes = reader.choice(&map, "writes");
    Some(Unmatched {
        reads: reads?,
        writes: writes?,
    })
}

fn safe_methods(reader: &mut Reader, map: &Map<'_>) -> Option<Box<[Box<str>]>> {
    if !map.has("safe_methods") {
        return Some(SAFE_METHODS.map(Box::from).into());
    }
    let methods = reader.values(map, "safe_methods", units::method)?;
    for method in &methods {
        if matches!(
            &*method.value,
            "PUT" | "POST" | "PATCH" | "DELETE" | "MOVE" | "COPY" | "MKCOL" | "PROPPATCH"
        ) {
            let message = format!(
                "{}: {} writes on most backends, and safe methods are not fenced as writes",
                map.path_to("safe_methods"),
                method.value
            );
            reader.warn(method.at, message);
        }
    }
    Some(methods.into_iter().map(|m| m.value).collect())
}

/// What must differ between listeners.
struct Heading {
    path: String,
    name: Option<Placed<String>>,
    bind: Option<Placed<SocketAddr>>,
}

/// Names and addresses must differ: two sockets can't share one, and metrics go by name.
fn check_headings(reader: &mut Reader, headings: &[Heading], admin: Option<&Placed<SocketAddr>>) {
    for (index, second) in headings.iter().enumerate() {
        let (Some(name), earlier) = (&second.name, &headings[..index]) else {
            continue;
        };
        let twin = earlier
            .iter()
            .filter_map(|h| h.name.as_ref())
            .find(|n| n.value == name.value);
        if let Some(first) = twin {
            reader.problem(
                name.at,
                format!(
                    "two listeners are named {:?}; the first is at {}",
                    name.value, first.at
                ),
            );
        }
    }
    let mut taken: Vec<(SocketAddr, String)> = admin
        .map(|a| (a.value, "admin.bind".to_string()))
        .into_iter()
        .collect();
    for heading in headings {
        let Some(bind) = &heading.bind else { continue };
        if let Some((_, by)) = taken.iter().find(|(address, _)| collide(*address, bind.value)) {
            reader.problem(
                bind.at,
                format!("{}.bind: {} is taken by {by}", heading.path, bind.value),
            );
        }
        taken.push((bind.value, format!("{}.bind at {}", heading.path, bind.at)));
    }
}

fn check_loop(reader: &mut Reader, map: &Map<'_>, bind: SocketAddr, upstream: &Upstream) {
    let Target::Tcp { host, port } = &upstream.target else {
        return;
    };
    if host.parse() == Ok(bind.ip()) && *port == bind.port() {
        let message = format!(
            "{}: the backend is the listener's own address",
            map.path_to("upstream")
        );
        reader.problem(map.place_of("upstream"), message);
    }
}

fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip()
        || (a.is_ipv4() == b.is_ipv4() && (a.ip().is_unspecified() || b.ip().is_unspecified()));
    a.port() != 0 && a.port() == b.port() && same_ip
}

/// Choices of which one word is built.
struct Http;
/// Whether connections may be upgraded.
enum Upgrades {
    Refuse,
    Pass,
}

macro_rules! words {
    ($kind:ty: $($word:literal => $value:expr),+) => {
        impl Word for $kind {
            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some($value),)+
                    _ => None,
                }
            }
        }
    };
}
pub(super) use words;

words!(Http: "http" => Http);
words!(Paths: "strict" => Paths::Strict, "lenient" => Paths::Lenient);
words!(Upgrades: "refuse" => Upgrades::Refuse, "pass" => Upgrades::Pass);
words!(Errors: "problem" => Errors::Problem, "s3" => Errors::S3);
words!(StoreKind: "file" => StoreKind::File, "memory" => StoreKind::Memory);
words!(LogFormat: "text" => LogFormat::Text, "json" => LogFormat::Json);
words!(LogLevel: "error" => LogLevel::Error, "warn" => LogLevel::Warn, "info" => LogLevel::Info,
    "debug" => LogLevel::Debug, "trace" => LogLevel::Trace);
words!(CommitPoint: "last_byte" => CommitPoint::LastByte, "first_byte" => CommitPoint::FirstByte);
words!(Policy: "pass" => Policy::Pass, "deny" => Policy::Deny);
