//! The configuration that the process runs with, defaults filled in, under the names of the configuration file.
//! No secret is shown: of one it says only that there is one, of keys only where their files are.

mod http;
mod redis;
mod tcp;

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::{Secret, TokenFormat};
use crate::config::{Admin, Config, EtcdStore, EtcdTls, Listener, Log, LogFormat, Password, Store, Upstream};
use crate::net::{ClientFiles, ClientTls, ServerFiles, ServerTls};
use crate::rules::{Allow, CertPattern, Kinds};

/// What the admin address tells of the configuration.
#[derive(Clone, Debug)]
pub struct Effective {
    json: Value,
    kinds: Kinds,
    format: Option<TokenFormat>,
}

impl Effective {
    /// What there is to tell of this configuration.
    #[must_use]
    pub fn of(config: &Config) -> Effective {
        Effective {
            json: whole(config),
            kinds: Kinds::of(config.fences()),
            format: agreed_format(config),
        }
    }

    /// The whole of it.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Which kinds of tokens the rules read.
    #[must_use]
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The format of all rules' tokens, if they agree.
    #[must_use]
    pub fn format(&self) -> Option<TokenFormat> {
        self.format
    }
}

fn agreed_format(config: &Config) -> Option<TokenFormat> {
    let mut formats = config.fences().map(|fence| fence.format);
    let first = formats.next()?;
    formats.all(|other| other == first).then_some(first)
}

// Each function below takes its part apart by name, so that a new key can't be forgotten.

fn whole(config: &Config) -> Value {
    let Config {
        store,
        admin: Admin { bind, tls, token },
        log: Log { format, level },
        shutdown_timeout,
        listeners,
    } = config;
    let store = match store {
        Store::File { path } => json!({ "kind": "file", "path": path.to_string_lossy() }),
        Store::Etcd(store) => etcd(store),
        Store::Memory => json!({ "kind": "memory" }),
    };
    let format = match format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    json!({
        "version": 1,
        "store": store,
        "admin": {
            "bind": bind,
            "tls": tls.as_ref().map(|tls| server_tls(tls)),
            "token_file": token.as_ref().map(redacted),
        },
        "log": { "format": format, "level": level.as_str() },
        "shutdown_timeout": duration(*shutdown_timeout),
        "listeners": listeners.iter().map(listener).collect::<Vec<_>>(),
    })
}

fn etcd(store: &EtcdStore) -> Value {
    let EtcdStore {
        endpoints,
        prefix,
        owner_ttl,
        user,
        tls,
    } = store;
    let EtcdTls {
        ca_file,
        pair,
        server_name,
    } = tls;
    let (cert_file, key_file) = pair.as_ref().map(|(cert, key)| (cert, key)).unzip();
    json!({
        "kind": "etcd",
        "endpoints": endpoints,
        "prefix": prefix,
        "owner_ttl": duration(*owner_ttl),
        "username": user.as_ref().map(|user| &user.name),
        "password": user.as_ref().map(|user| match &user.password {
            Password::Given(secret) => json!(redacted(secret)),
            Password::File(path) => json!({ "file": path }),
        }),
        "tls": { "ca_file": ca_file, "cert_file": cert_file, "key_file": key_file, "server_name": server_name },
    })
}

fn listener(listener: &Listener) -> Value {
    match listener {
        Listener::Http(listener) => http::listener(listener),
        Listener::Redis(listener) => redis::listener(listener),
        Listener::Tcp(listener) => tcp::listener(listener),
    }
}

/// The keys of an upstream that all protocols have.
fn upstream(upstream: &Upstream) -> Value {
    let Upstream {
        target: _,
        scheme: _,
        tls,
        connect_timeout,
        settle_after,
        max_connections,
    } = upstream;
    json!({
        "url": upstream.to_string(),
        "tls": tls.as_ref().map(|tls| client_tls(tls)),
        "connect_timeout": duration(*connect_timeout),
        "settle_after": duration(*settle_after),
        "max_connections": max_connections,
    })
}

/// Where the files are, never what stands in them.
fn server_tls(tls: &ServerTls) -> Value {
    let ServerFiles { cert, key, client_ca } = tls.files();
    json!({ "cert_file": cert, "key_file": key, "client_ca_file": client_ca })
}

fn client_tls(tls: &ClientTls) -> Value {
    let ClientFiles { ca, pair } = tls.files();
    let (cert, key) = pair.clone().unzip();
    json!({ "ca_file": ca, "cert_file": cert, "key_file": key, "server_name": tls.server_name() })
}

fn who(allow: &Allow) -> Value {
    let Allow { cidr, client_cert } = allow;
    json!({
        "cidr": cidr.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "client_cert": client_cert.as_ref().map(CertPattern::as_str),
    })
}

fn redacted(_: &Secret) -> &'static str {
    "(redacted)"
}

/// As the configuration writes it.
fn duration(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::Effective;
    use crate::config;

    #[test]
    fn what_a_rule_matches_and_where_its_tokens_come_from_is_shown_as_it_is_written() {
        let text = r#"
version: 1
listeners:
  - name: a
    bind: "127.0.0.1:80"
    paths: lenient
    upstream: { url: "http://s" }
    rules:
      - { name: no, match: { path: "/{b}", query: { delete: "" } }, action: deny }
      - name: r
        match: { path: "/{b}/{*k}", host: a.test, headers: { X-Kind: "o*" } }
        fences:
          - { resource: "b/{b}", token: { header: [A, B], pattern: 't=(\d+)' } }
          - { resource: "b/{b}", path_from: { header: Destination }, token: { cookie: c } }
          - { resource: q, token: { query: q } }
"#;
        let (config, _) = config::parse("f", text, &|_| None).unwrap();
        let json = Effective::of(&config).json().clone();
        let listener = &json["listeners"][0];
        assert_eq!(listener["paths"], "lenient");
        let [no, rule] = &listener["rules"].as_array().unwrap()[..] else {
            panic!("{json}");
        };
        assert_eq!(no["action"], "deny");
        assert_eq!(no["match"]["query"]["delete"], "");
        assert_eq!(rule["action"], "fence");
        assert_eq!(rule["match"]["host"][0], "a.test");
        assert_eq!(rule["match"]["headers"]["X-Kind"], "o*");
        let fences = &rule["fences"];
        assert_eq!(fences[0]["token"]["header"][1], "B");
        assert_eq!(fences[0]["token"]["pattern"], r"t=(\d+)");
        assert_eq!(fences[1]["path_from"]["header"], "Destination");
        assert_eq!(fences[1]["token"]["cookie"], "c");
        assert_eq!(fences[2]["token"]["query"], "q");
    }
}
