//! The published schema of the configuration: the checked-in copy is what the program prints, the examples fit, and
//! what is wrong or not built doesn't.
//!
//! The validator below knows the few keywords that the schema uses, and fails on any other: a crate for all of them
//! would bring two dozen more.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};

#[test]
fn the_checked_in_schema_is_what_the_program_prints() {
    let printed = Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .arg("schema")
        .output()
        .unwrap();
    assert_eq!(printed.status.code(), Some(0));
    let printed = String::from_utf8(printed.stdout).unwrap();
    let checked_in = fs::read_to_string(at("config/fencegate.schema.json")).unwrap();
    assert!(
        printed == checked_in,
        "write it anew: cargo run -- schema > config/fencegate.schema.json"
    );
}

#[test]
fn every_example_fits_the_schema() {
    let mut examples: Vec<(String, String)> = fs::read_dir(at("config"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "yaml"))
        .map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap()))
        .collect();
    let readme = fs::read_to_string(at("README.md")).unwrap();
    for block in readme.split("```yaml\n").skip(1) {
        examples.push(("README.md".into(), block.split("```").next().unwrap().into()));
    }
    assert!(examples.len() > 1);
    for (name, text) in examples {
        assert_eq!(problems(&text), [] as [String; 0], "{name}");
    }
}

#[test]
fn anchors_have_room_at_the_top() {
    assert_eq!(
        problems(&small("version: 1", "version: 1\nx-any: { thing: [1] }")),
        [] as [String; 0]
    );
}

#[test]
fn what_is_wrong_or_not_built_does_not_fit() {
    for (from, to) in [
        ("version: 1", "version: 2"),
        ("version: 1\n", ""),
        ("memory", "disk"),
        ("kind: memory", "kind: memory, endpoints: a"),
        ("settle_after: 3s", "settle_after: 3"),
        ("settle_after: 3s", "settle_after: soon"),
        ("settle_after: 3s", "settle_afterr: 3s"),
        ("settle_after: 3s", "max_connections: 0"),
        ("settle_after: 3s", "max_connections: many"),
        ("settle_after: 3s", "tls: { ca_fil: a }"),
        ("http://", "ftp://"),
        ("\"127.0.0.1:8080\"", "8080"),
        ("name: store", "name: store\n    protocol: redis"),
        ("name: store", "name: store\n    upgrades: maybe"),
        ("name: store", "name: store\n    forwarded: maybe"),
        (
            "name: store",
            "name: store\n    limits: { max_header_bytes: 64kb }",
        ),
        ("path: \"/{b}/{*k}\"", "path: \"/{b}/{*k}\", keys: \"a\""),
        ("path: \"/{b}/{*k}\"", "path: \"/{b}/{*k}\", methods: [put]"),
        ("path: \"/{b}/{*k}\"", "path: \"/{b}/{*k}\", methods: []"),
        ("path: \"/{b}/{*k}\"", "path: \"/{b}/{*k}\", methods: PUT"),
        ("resource:", "action: perhaps\n        resource:"),
        ("version: 1", "version: 1\nadmin: { tls: { cert_file: a } }"),
        ("resource:", "allow: { cidr: [everywhere] }\n        resource:"),
        ("name: store", "name: store\n    protocol: tcp"),
    ] {
        assert!(!problems(&small(from, to)).is_empty(), "{from} -> {to}");
    }
}

#[test]
fn a_variable_may_stand_wherever_a_value_may() {
    for (from, to) in [
        ("settle_after: 3s", "settle_after: \"${SETTLE}\""),
        ("settle_after: 3s", "max_connections: \"${N:-7}\""),
        ("settle_after: 3s", "commit_point: \"${POINT}\""),
        ("\"127.0.0.1:8080\"", "\"${BIND}\""),
        ("\"127.0.0.1:8080\"", "\"127.0.0.1:${PORT}\""),
        ("name: store", "name: store\n    forwarded: \"${FORWARDED}\""),
    ] {
        assert_eq!(problems(&small(from, to)), [] as [String; 0], "{from} -> {to}");
    }
}

#[test]
fn every_key_says_what_it_means() {
    fn look(schema: &Value, way: &str) {
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            let way = format!("{way}.{name}");
            assert!(below["description"].is_string(), "{way}");
            look(below, &way);
            look(&below["items"], &way);
        }
    }
    let schema = schema();
    let listeners = schema["properties"]["listeners"]["items"]["anyOf"]
        .as_array()
        .unwrap();
    assert!(listeners.len() > 1);
    for listener in listeners {
        assert!(listener["properties"]["rules"].is_object());
        look(listener, "");
    }
    look(&schema, "");
}

// ---- what the tests use

const SMALL: &str = r#"version: 1
store: { kind: memory }
listeners:
  - name: store
    bind: "127.0.0.1:8080"
    upstream: { url: "http://127.0.0.1:9000", settle_after: 3s }
    rules:
      - name: bucket
        match: { path: "/{b}/{*k}" }
        resource: "bucket/{b}"
        token: { header: Fencing-Token, max_step: 1000 }
"#;

fn small(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

fn schema() -> Value {
    serde_json::from_str(&fs::read_to_string(at("config/fencegate.schema.json")).unwrap()).unwrap()
}

fn problems(yaml: &str) -> Vec<String> {
    let mut found = Vec::new();
    validate(&schema(), &as_json(yaml), "", &mut found);
    found
}

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// JSON Schema 2020-12, as far as the schema uses it.
fn validate(schema: &Value, value: &Value, way: &str, found: &mut Vec<String>) {
    for (keyword, asked) in schema.as_object().unwrap() {
        let fits = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => match asked.as_array() {
                Some(types) => types.iter().any(|one| is_of_type(value, one)),
                None => is_of_type(value, asked),
            },
            "enum" => asked.as_array().unwrap().contains(value),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.len() as u64 >= asked.as_u64().unwrap()),
            "minItems" => value
                .as_array()
                .is_none_or(|list| list.len() as u64 >= asked.as_u64().unwrap()),
            "minimum" => value
                .as_i64()
                .is_none_or(|number| number >= asked.as_i64().unwrap()),
            "maximum" => value
                .as_i64()
                .is_none_or(|number| number <= asked.as_i64().unwrap()),
            "pattern" => value
                .as_str()
                .is_none_or(|text| Regex::new(asked.as_str().unwrap()).unwrap().is_match(text)),
            "required" => {
                let there = |key: &Value| value.get(key.as_str().unwrap()).is_some();
                !value.is_object() || asked.as_array().unwrap().iter().all(there)
            }
            "anyOf" => asked.as_array().unwrap().iter().any(|one| {
                let mut found = Vec::new();
                validate(one, value, way, &mut found);
                found.is_empty()
            }),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(asked, item, &format!("{way}[{index}]"), found);
                }
                true
            }
            "properties" => {
                for (key, below) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = asked.get(key) {
                        validate(schema, below, &format!("{way}.{key}"), found);
                    }
                }
                true
            }
            "patternProperties" => {
                assert_eq!(*asked, json!({ "^x-": {} }));
                true
            }
            "minProperties" => value
                .as_object()
                .is_none_or(|map| map.len() as u64 >= asked.as_u64().unwrap()),
            "additionalProperties" if asked.is_object() => {
                assert!(schema.get("properties").is_none(), "all keys are the user's");
                for (key, below) in value.as_object().into_iter().flatten() {
                    validate(asked, below, &format!("{way}.{key}"), found);
                }
                true
            }
            "additionalProperties" => {
                assert_eq!(*asked, json!(false));
                let known = |key: &String| {
                    schema["properties"].get(key).is_some()
                        || (schema.get("patternProperties").is_some() && key.starts_with("x-"))
                };
                value.as_object().is_none_or(|map| map.keys().all(known))
            }
            other => panic!("the keyword {other} is not checked"),
        };
        if !fits {
            found.push(format!("{way}: {value} does not fit {keyword} {asked}"));
        }
    }
}

fn is_of_type(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("the type {other}"),
    }
}

/// YAML as an editor reads it: plain scalars by the core schema.
fn as_json(yaml: &str) -> Value {
    let mut yaml = Yaml {
        events: Parser::new_from_str(yaml).map(|event| event.unwrap().0),
        anchors: HashMap::new(),
    };
    loop {
        match yaml.events.next().unwrap() {
            Event::StreamStart | Event::DocumentStart(_) => {}
            event => return yaml.node(event),
        }
    }
}

struct Yaml<I> {
    events: I,
    anchors: HashMap<usize, Value>,
}

impl<'t, I: Iterator<Item = Event<'t>>> Yaml<I> {
    fn node(&mut self, event: Event<'t>) -> Value {
        let (anchor, value) = match event {
            Event::Scalar(text, ScalarStyle::Plain, anchor, _) => (anchor, plain(&text)),
            Event::Scalar(text, _, anchor, _) => (anchor, Value::String(text.into_owned())),
            Event::SequenceStart(anchor, _) => (anchor, self.list()),
            Event::MappingStart(anchor, _) => (anchor, self.map()),
            Event::Alias(anchor) => return self.anchors[&anchor].clone(),
            other => panic!("{other:?} is not read here"),
        };
        // 0 is none.
        self.anchors.insert(anchor, value.clone());
        value
    }

    fn list(&mut self) -> Value {
        let mut items = Vec::new();
        loop {
            match self.events.next().unwrap() {
                Event::SequenceEnd => return Value::Array(items),
                event => items.push(self.node(event)),
            }
        }
    }

    fn map(&mut self) -> Value {
        let mut map = Map::new();
        loop {
            match self.events.next().unwrap() {
                Event::MappingEnd => return Value::Object(map),
                Event::Scalar(key, ..) => {
                    let event = self.events.next().unwrap();
                    map.insert(key.into_owned(), self.node(event));
                }
                other => panic!("{other:?} as a key"),
            }
        }
    }
}

fn plain(text: &str) -> Value {
    match (text, text.parse::<u64>()) {
        ("true", _) => true.into(),
        ("false", _) => false.into(),
        ("" | "~" | "null", _) => Value::Null,
        (_, Ok(number)) => number.into(),
        (_, Err(_)) => text.into(),
    }
}
