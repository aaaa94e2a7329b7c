//! Marks and the kind of the tokens that they were made of: a start with rules that read another kind is refused.

#[allow(dead_code)]
mod admin_common;

use std::process::{Command, Output, Stdio};

use admin_common::{Backend, Gate, OBJECTS};
use serde_json::json;

/// A gate that has a mark for `object/a`, and was told to stop.
fn stopped_gate(format: &str, token: &str) -> (Backend, Gate) {
    let backend = Backend::start();
    let mut gate = Gate::start(&backend, "file", &[&rule(format)]);
    assert_eq!(gate.put("/a", token).status, 200);
    assert!(gate.end(libc::SIGTERM).success());
    (backend, gate)
}

fn rule(format: &str) -> String {
    OBJECTS.replace("Fencing-Token }", &format!("Fencing-Token, format: {format} }}"))
}

/// Changes the configuration; the text to change must be there.
fn change(gate: &Gate, from: &str, to: &str) {
    let path = gate.folder.path().join("gate.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}:\n{text}");
    std::fs::write(&path, text.replace(from, to)).unwrap();
}

/// A start that is to end by itself.
fn start(gate: &Gate) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .args(["serve", "-c"])
        .arg(gate.folder.path().join("gate.yaml"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_start_with_tokens_of_another_kind_than_the_marks_is_refused() {
    for (old, [lower, token, higher], new) in [
        ("integer", ["41", "42", "43"], "pair"),
        ("hex", ["29", "2a", "2b"], "pair"),
        ("pair", ["41.6", "41.7", "41.8"], "integer"),
    ] {
        let (_backend, mut gate) = stopped_gate(old, token);
        let (from, to) = (format!("format: {old}"), format!("format: {new}"));
        change(&gate, &from, &to);
        let output = start(&gate);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{old} to {new}: {said}");
        for words in ["1 of the stored marks", "object/a", old, new, "rule", "resource:"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        // Back to the old format: nothing was lost, and no wait after a crash came of it.
        change(&gate, &to, &from);
        gate.start_again();
        assert_eq!(gate.put("/a", lower).status, 412);
        assert_eq!(gate.put("/a", higher).status, 200);
    }
}

#[test]
fn integers_may_become_hex_and_new_names_may_have_any_kind() {
    let (_backend, mut gate) = stopped_gate("integer", "42");
    change(&gate, "format: integer", "format: hex");
    gate.start_again();
    assert_eq!(gate.put("/a", "29").status, 412, "29 is 41");
    assert_eq!(gate.put("/a", "2a").status, 200);
    assert!(gate.end(libc::SIGTERM).success());
    change(&gate, "format: hex", "format: pair");
    change(&gate, "resource: \"object/{key}\"", "resource: \"pairs/{key}\"");
    gate.start_again();
    assert_eq!(gate.put("/a", "1.1").status, 200);
}

#[test]
fn a_rule_that_only_observes_reads_any_kind() {
    let (_backend, mut gate) = stopped_gate("integer", "42");
    change(&gate, "format: integer }", "format: pair }, mode: observe");
    gate.start_again();
    assert_eq!(gate.put("/a", "1.1").status, 200);
}

#[test]
fn an_operator_sets_no_mark_of_another_kind_than_the_rules_read() {
    let backend = Backend::start();
    let gate = Gate::start(&backend, "file", &[OBJECTS]);
    for seen in [false, true] {
        for (verb, token) in [("raise", "43.1"), ("reset", "0.1")] {
            let order = json!({ "resource": "object/a", "token": token, "format": "pair" });
            let mut order = order.as_object().unwrap().clone();
            if verb == "reset" {
                order.insert("reason".into(), "why".into());
            }
            let answer = gate.post(&format!("/api/v1/fences/{verb}"), &order.into());
            assert_eq!(answer.status, 400, "{verb}, seen: {seen}: {answer:?}");
        }
        assert_eq!(gate.put("/a", "42").status, 200);
        assert_eq!(gate.put("/a", "41").status, 412);
    }
}
