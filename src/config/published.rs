//! The configuration's JSON Schema (draft 2020-12), for editors, made from the one table of `schema.rs`: keys and words
//! that are not built don't stand in it. Called by `fencegate schema`.
//!
//! It knows less than `fencegate check`, which also looks at what must hold between keys. A value may hold a variable
//! wherever a text may stand, so each pattern takes `${…}` as well.

use serde_json::{Map, Value, json};

use super::schema::{Key, Kind, ROOT, Section, State};
use super::units;

/// The schema as it is published, with a line feed at its end.
#[must_use]
pub fn json_schema() -> String {
    let mut whole = section(&ROOT);
    let members = whole.as_object_mut().expect("a section is an object");
    members.insert(
        "$schema".into(),
        "https://json-schema.org/draft/2020-12/schema".into(),
    );
    members.insert("title".into(), "fencegate".into());
    // Room for anchors; nothing in there is a value.
    members.insert("patternProperties".into(), json!({ "^x-": {} }));
    let text = serde_json::to_string_pretty(&whole).expect("strings and numbers are always JSON");
    text + "\n"
}

fn section(section: &Section) -> Value {
    let keys = || section.keys.iter();
    let properties: Map<String, Value> = keys().map(|key| (key.name.into(), described(key))).collect();
    let required: Vec<&str> = keys()
        .filter(|key| matches!(key.state, State::Required))
        .map(|key| key.name)
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn described(key: &Key) -> Value {
    let mut value = match key.kind {
        Kind::Value(what) => scalar(what),
        Kind::Choice(words) => or_variable(json!({ "enum": words })),
        Kind::OneOrMore(what) => {
            let list = json!({ "type": "array", "items": scalar(what), "minItems": 1 });
            json!({ "anyOf": [scalar(what), list] })
        }
        Kind::Pairs(_) => {
            let value = json!({ "type": ["string", "number", "boolean"] });
            json!({ "type": "object", "additionalProperties": value, "minProperties": 1 })
        }
        Kind::Values(what) => json!({ "type": "array", "items": scalar(what), "minItems": 1 }),
        Kind::Section(below) => section(below),
        Kind::Either(what, below) => json!({ "anyOf": [scalar(what), section(below)] }),
        Kind::Sections(below) => json!({ "type": "array", "items": section(below), "minItems": 1 }),
        Kind::Variants(variants) => {
            let each: Vec<Value> = variants.each.iter().map(|(_, below)| section(below)).collect();
            let items = match <[Value; 1]>::try_from(each) {
                Ok([only]) => only,
                Err(each) => json!({ "anyOf": each }),
            };
            json!({ "type": "array", "items": items, "minItems": 1 })
        }
    };
    let members = value.as_object_mut().expect("every schema here is an object");
    members.insert("description".into(), key.doc.into());
    if let State::Default(text) = key.state {
        members.insert("default".into(), default(text));
    }
    value
}

/// As an editor fills it in.
fn default(text: &str) -> Value {
    match (text, units::whole(text)) {
        ("true", _) => true.into(),
        ("false", _) => false.into(),
        (_, Some(number)) => number.into(),
        (_, None) => text.into(),
    }
}

/// What may stand there, by the words of the table. Where they say nothing that a pattern can, any text may.
fn scalar(what: &str) -> Value {
    match what {
        "the number 1" => or_variable(json!({ "enum": [1, "1"] })),
        "a duration" => text("[0-9]+(ms|s|m|h)"),
        "a size" => or_number(1 << 10, "[0-9]+(B|KiB|MiB)?"),
        "a number" => or_number(1, "[0-9]+"),
        "true or false" => or_variable(json!({ "enum": [true, false, "true", "false"] })),
        "IP:PORT" => text("[^ ]+:[0-9]+"),
        "a URL" => text("(https?://|unix:).+"),
        "a URL of TCP" => text("(tcp://|unix:).+"),
        "the kind of a TLV" => or_number(1, "0x[0-9a-fA-F]{1,2}|[0-9]+"),
        "true" => or_variable(json!({ "enum": [true, "true"] })),
        "networks" => text("[0-9a-fA-F:.]+(/[0-9]+)?"),
        "HTTP methods" => text("[^a-z*]+"),
        "HTTP statuses" => or_variable(json!({ "type": "integer", "minimum": 200, "maximum": 599 })),
        _ => json!({ "type": "string", "minLength": 1 }),
    }
}

fn text(pattern: &str) -> Value {
    let pattern = format!("^({pattern}|.*\\$\\{{.*\\}}.*)$");
    json!({ "type": "string", "pattern": pattern })
}

fn or_number(minimum: u64, pattern: &str) -> Value {
    let (number, text) = (json!({ "type": "integer", "minimum": minimum }), text(pattern));
    json!({ "anyOf": [number, text] })
}

fn or_variable(value: Value) -> Value {
    json!({ "anyOf": [value, { "type": "string", "pattern": "\\$\\{.*\\}" }] })
}
