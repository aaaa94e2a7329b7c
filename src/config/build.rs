//! The tree to checked types: what each key means, and what must hold between keys. Called by `mod.rs`.

use std::net::SocketAddr;
use std::sync::Arc;

use super::listeners;
use super::reader::{Map, Placed, Reader, Word};
use super::schema::ROOT;
use super::secret;
use super::store;
use super::tls;
use super::tree::Node;
use super::types::{Admin, Config, Log, LogFormat, LogLevel};
use super::units;
use crate::base::Secret;
use crate::net::ServerTls;

/// Builds the checked configuration; `None` where a problem was reported.
pub(super) fn config(reader: &mut Reader, node: &Node) -> Option<Config> {
    let root = reader.root(node, &ROOT)?;
    let version = reader.value(&root, "version", |text| match text {
        "1" => Ok(()),
        other => Err(format!("version {other:?} is not known; it is 1")),
    });
    let store = store::store(reader, &root);
    let admin = admin(reader, &root);
    let log = log(reader, &root);
    let shutdown_timeout = reader.value(&root, "shutdown_timeout", units::duration);
    let listeners = listeners::read(reader, &root, admin.bind.as_ref());
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
        listeners: listeners?,
    };
    // An empty list was reported; a configuration without listeners is none.
    (!config.listeners.is_empty()).then_some(config)
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

words!(LogFormat: "text" => LogFormat::Text, "json" => LogFormat::Json);
words!(LogLevel: "error" => LogLevel::Error, "warn" => LogLevel::Warn, "info" => LogLevel::Info,
    "debug" => LogLevel::Debug, "trace" => LogLevel::Trace);
