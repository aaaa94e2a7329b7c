//! docker-compose.yml, the Dockerfile and `config/compose/` fit each other: every file that is named is there, every
//! configuration passes, and ports and names agree. No container is started.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencegate::config::{self, Config, Target};
use saphyr_parser::{Event, Parser};

#[test]
fn every_configuration_below_compose_passes_the_check() {
    let configs: Vec<PathBuf> = fs::read_dir(at("config/compose"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "yaml"))
        .collect();
    assert!(!configs.is_empty());
    for path in configs {
        checked(&path);
    }
}

#[test]
fn every_file_that_a_service_mounts_is_there() {
    let compose = compose();
    let mut seen = 0;
    for (name, service) in compose["services"].map() {
        for volume in service.get("volumes").map_or(&[][..], Yaml::list) {
            let (from, _) = volume.text().split_once(':').expect("a volume is FROM:TO");
            if from.starts_with("./") {
                assert!(at(from).is_file(), "{name}: {from}");
                seen += 1;
            } else {
                assert!(compose["volumes"].get(from).is_some(), "{name}: {from}");
            }
        }
    }
    assert_eq!(seen, 3, "two gates and the balancer have a file each");
}

#[test]
fn each_service_has_a_pinned_image_and_says_whether_it_is_well() {
    for (name, service) in compose()["services"].map() {
        let image = service["image"].text();
        let (_, tag) = image.rsplit_once(':').expect("an image has a tag");
        assert!(tag == "local" || tag.contains('.'), "{name}: {image}");
        let by_its_image = image == "fencegate:local";
        let probed_by_nobody = name == "balancer";
        assert!(
            service.get("healthcheck").is_some() || by_its_image || probed_by_nobody,
            "{name} has no health check"
        );
    }
    for line in fs::read_to_string(at("Dockerfile")).unwrap().lines() {
        if let Some(image) = line.strip_prefix("FROM ") {
            let tag = image.split([':', ' ']).nth(1).expect("an image has a tag");
            assert!(tag.contains('.'), "{image}");
        }
    }
}

#[test]
fn ports_and_names_agree() {
    let compose = compose();
    let services = &compose["services"];
    let gate = gate();
    let [listener] = &*gate.listeners else {
        panic!("the gates have one listener");
    };
    let balancer = fs::read_to_string(at("config/compose/haproxy.cfg")).unwrap();
    for name in ["gate-1", "gate-2"] {
        assert!(services.get(name).is_some(), "{name}");
        let server = balancer
            .lines()
            .find_map(|line| line.trim().strip_prefix(&format!("server {name} ")))
            .expect("the balancer has a server for each gate");
        assert!(
            server.contains(&format!("-{name}:{}}}", listener.bind().port())),
            "{server}"
        );
        assert!(
            server.contains(&format!("-{}}}", gate.admin.bind.port())),
            "{server}"
        );
    }
    assert_eq!(balancer.matches("\n    server ").count(), 2);
    let published = services["balancer"]["ports"].list()[0].text();
    let (outside, inside) = published.rsplit_once(':').unwrap();
    assert!(outside.starts_with("127.0.0.1:"), "{published}");
    assert!(
        balancer.contains(&format!("-0.0.0.0:{inside}}}\"")),
        "{published}"
    );
    let Target::Tcp { host, port } = &listener.upstream().target else {
        panic!("the store is a service");
    };
    let store = services[&**host]["command"].list().iter().map(Yaml::text);
    assert!(store.collect::<Vec<_>>().contains(&&*format!(":{port}")));
}

#[test]
fn the_gates_reach_every_member_of_etcd_that_there_is() {
    let compose = compose();
    let text = fs::read_to_string(at("config/compose/fencegate.yaml")).unwrap();
    let members: Vec<&str> = compose["services"]
        .map()
        .keys()
        .map(|name| &**name)
        .filter(|name| name.starts_with("etcd-"))
        .collect();
    assert_eq!(members.len(), 3);
    for member in members {
        let environment = &compose["services"][member]["environment"];
        let url = environment["ETCD_ADVERTISE_CLIENT_URLS"].text();
        assert_eq!(url, format!("http://{member}:2379"));
        assert!(text.contains(&format!(":-{url}}}\"")), "{url}");
        assert_eq!(environment["ETCD_NAME"].text(), member);
        let cluster = environment["ETCD_INITIAL_CLUSTER"].text();
        let peer = environment["ETCD_INITIAL_ADVERTISE_PEER_URLS"].text();
        assert!(
            cluster
                .split(',')
                .any(|known| known == format!("{member}={peer}"))
        );
    }
}

#[test]
fn only_the_balancer_is_reached_from_outside_and_only_the_gates_reach_the_store() {
    let compose = compose();
    let networks = |service: &Yaml| -> Vec<String> {
        let names = service.get("networks").map_or(&[][..], Yaml::list);
        names.iter().map(|name| name.text().to_owned()).collect()
    };
    for (name, service) in compose["services"].map() {
        assert_eq!(service.get("ports").is_some(), name == "balancer", "{name}");
        let reaches_the_store = networks(service).iter().any(|network| network == "store");
        let may = matches!(&**name, "gate-1" | "gate-2" | "s3");
        assert_eq!(reaches_the_store, may, "{name}");
    }
    for network in ["store", "marks"] {
        assert_eq!(compose["networks"][network]["internal"].text(), "true");
    }
}

#[test]
fn a_stopped_container_has_the_time_that_a_clean_stop_takes() {
    let gate = gate();
    let grace = compose()["services"]["gate-1"]["stop_grace_period"]
        .text()
        .to_owned();
    let seconds = grace.strip_suffix('s').unwrap().parse().unwrap();
    assert!(gate.shutdown_timeout > gate.settle_after_max());
    assert!(Duration::from_secs(seconds) > gate.shutdown_timeout);
}

#[test]
fn the_image_gets_all_that_the_build_names() {
    let dockerfile = fs::read_to_string(at("Dockerfile")).unwrap();
    let copied: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"))
        .flat_map(|line| line.rsplit_once(' ').expect("COPY FROM TO").0.split(' '))
        .collect();
    let ignored = fs::read_to_string(at(".dockerignore")).unwrap();
    let let_in: Vec<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let sorted = |mut names: Vec<&str>| {
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(sorted(copied.clone()), sorted(let_in));
    for name in copied {
        assert!(at(name).exists(), "{name}");
    }
}

fn gate() -> Config {
    checked(&at("config/compose/fencegate.yaml"))
}

/// With a token that is there; all else as the containers have it.
fn checked(path: &Path) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let environment = |name: &str| (name == "ADMIN_TOKEN_FILE").then(|| token.display().to_string());
    let text = fs::read_to_string(path).unwrap();
    let (config, warnings) = config::parse(&path.display().to_string(), &text, &environment)
        .unwrap_or_else(|problems| panic!("{problems}"));
    // It stands beyond loopback without TLS; what the file says about that is in it.
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&*warnings, [one] if one.contains("admin.bind")),
        "{warnings:?}"
    );
    config
}

fn compose() -> Yaml {
    let text = fs::read_to_string(at("docker-compose.yml")).unwrap();
    Yaml::read(&text)
}

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A document with its aliases and merge keys resolved.
#[derive(Clone, Debug)]
enum Yaml {
    Text(String),
    List(Vec<Yaml>),
    Map(BTreeMap<String, Yaml>),
}

impl Yaml {
    fn read(text: &str) -> Yaml {
        let mut events = Parser::new_from_str(text).map(|event| event.unwrap().0);
        let mut anchors = HashMap::new();
        loop {
            match events.next().expect("there is a document") {
                Event::StreamStart | Event::DocumentStart(_) => {}
                event => return Yaml::node(event, &mut events, &mut anchors),
            }
        }
    }

    fn node<'t>(
        event: Event<'t>,
        events: &mut dyn Iterator<Item = Event<'t>>,
        anchors: &mut HashMap<usize, Yaml>,
    ) -> Yaml {
        let (node, anchor) = match event {
            Event::Alias(id) => return anchors[&id].clone(),
            Event::Scalar(text, _, anchor, _) => (Yaml::Text(text.into_owned()), anchor),
            Event::SequenceStart(anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match events.next().unwrap() {
                        Event::SequenceEnd => break (Yaml::List(items), anchor),
                        event => items.push(Yaml::node(event, events, anchors)),
                    }
                }
            }
            Event::MappingStart(anchor, _) => {
                let (mut own, mut merged) = (BTreeMap::new(), BTreeMap::new());
                loop {
                    let key = match events.next().unwrap() {
                        Event::MappingEnd => break,
                        event => Yaml::node(event, events, anchors).text().to_owned(),
                    };
                    let value = events.next().unwrap();
                    let value = Yaml::node(value, events, anchors);
                    if key == "<<" {
                        merged.extend(value.map().clone());
                    } else {
                        assert!(own.insert(key.clone(), value).is_none(), "{key} stands twice");
                    }
                }
                merged.extend(own);
                (Yaml::Map(merged), anchor)
            }
            other => panic!("{other:?}"),
        };
        anchors.insert(anchor, node.clone());
        node
    }

    fn get(&self, key: &str) -> Option<&Yaml> {
        self.map().get(key)
    }

    fn map(&self) -> &BTreeMap<String, Yaml> {
        match self {
            Yaml::Map(map) => map,
            other => panic!("not a map: {other:?}"),
        }
    }

    fn list(&self) -> &[Yaml] {
        match self {
            Yaml::List(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }

    fn text(&self) -> &str {
        match self {
            Yaml::Text(text) => text,
            other => panic!("not a text: {other:?}"),
        }
    }
}

impl std::ops::Index<&str> for Yaml {
    type Output = Yaml;

    fn index(&self, key: &str) -> &Yaml {
        self.get(key).unwrap_or_else(|| panic!("{key} is missing"))
    }
}
