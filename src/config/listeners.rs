//! The listeners: each is read by the file of its protocol; what they share, and what must differ between them, is
//! here. Called by `build.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::build::words;
use super::http;
use super::reader::{Map, Placed, Reader, Word};
use super::redis;
use super::rules;
use super::tcp;
use super::tls::Place;
use super::types::{Listener, Target, Upstream};
use super::units;

/// What clients of a listener speak: one word a protocol that is built.
#[derive(Clone, Copy)]
enum Spoken {
    Http,
    Tcp,
    Redis,
}

words!(Spoken: "http" => Spoken::Http, "tcp" => Spoken::Tcp, "redis" => Spoken::Redis);

/// Reads all listeners; `None` where a problem was reported.
pub(super) fn read(
    reader: &mut Reader,
    root: &Map<'_>,
    admin: Option<&Placed<SocketAddr>>,
) -> Option<Vec<Listener>> {
    let mut origins = Vec::new();
    let (mut headings, mut read) = (Vec::new(), Vec::new());
    for (spoken, map) in reader.variants::<Spoken>(root, "listeners") {
        let heading = heading(reader, &map);
        read.push(match spoken {
            Spoken::Http => http::listener(reader, &map, &heading, &mut origins).map(Listener::Http),
            Spoken::Redis => redis::listener(reader, &map, &heading, &mut origins).map(Listener::Redis),
            Spoken::Tcp => tcp::listener(reader, &map, &heading, &mut origins).map(Listener::Tcp),
        });
        headings.push(heading);
    }
    check_headings(reader, &headings, admin);
    rules::check_across(reader, &origins);
    read.into_iter().collect()
}

fn heading(reader: &mut Reader, map: &Map<'_>) -> Heading {
    Heading {
        path: map.name().to_string(),
        name: reader.placed(map, "name", units::name),
        bind: reader.placed(map, "bind", units::bind),
    }
}

/// Reads the keys of an `upstream` that all protocols have. `settle_after` is what it is where the key is left out.
pub(super) fn upstream(
    reader: &mut Reader,
    map: &Map<'_>,
    place: Option<Place>,
    settle_after: Option<Duration>,
) -> Option<Upstream> {
    let connect_timeout = reader.value(map, "connect_timeout", units::some_duration);
    let max_connections = reader.value(map, "max_connections", units::count);
    let Place { target, scheme, tls } = place?;
    Some(Upstream {
        target,
        scheme,
        tls,
        connect_timeout: connect_timeout?,
        settle_after: settle_after?,
        max_connections: max_connections?,
    })
}

/// What must differ between listeners.
pub(super) struct Heading {
    path: String,
    name: Option<Placed<String>>,
    bind: Option<Placed<SocketAddr>>,
}

impl Heading {
    /// Both, where both could be read.
    pub(super) fn whole(&self) -> Option<(Arc<str>, SocketAddr)> {
        Some((
            self.name.as_ref()?.value.as_str().into(),
            self.bind.as_ref()?.value,
        ))
    }
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

/// A backend that is the listener itself.
pub(super) fn check_loop(reader: &mut Reader, map: &Map<'_>, bind: SocketAddr, upstream: &Upstream) {
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
