//! `fencegate store` on marks in etcd: a move there and back keeps everything, an owner keeps imports out, and looking
//! changes nothing.

mod etcd;
mod ledger_common;
mod store_common;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use etcd::{Etcd, Instance, raise, reset, settings, wait_for};
use fencegate::ledger::Ledger;
use fencegate::ledger::etcd::Settings;
use serde_json::Value;
use store_common::{Place, SETTLE};

const PREFIX: &str = "/fencegate/moved/";

fn place(etcd: &Etcd) -> Place {
    Place::with(&format!(
        "{{ kind: etcd, endpoints: [\"{}\"], prefix: {PREFIX}, owner_ttl: 3s }}",
        etcd.endpoint(0)
    ))
}

/// An instance on the same prefix.
fn instance(etcd: &Etcd) -> Instance {
    Instance::start(Settings {
        prefix: PREFIX.to_owned(),
        settle_after: Duration::from_secs(7),
        ..settings(etcd.endpoints())
    })
}

fn look(place: &Place) -> Value {
    serde_json::from_str(&place.fine(&["inspect", "--json", "--limit", "1000"])).unwrap()
}

/// The lines of an export but for its first and last, which have the time and the checksum in them.
fn lines(export: &str) -> Vec<&str> {
    let lines: Vec<&str> = export.lines().collect();
    lines[1..lines.len() - 1].to_vec()
}

#[test]
fn a_move_from_file_to_etcd_and_back_keeps_everything() {
    for clean in [true, false] {
        let etcd = Etcd::one();
        let (from, shared, back) = (Place::new(), place(&etcd), Place::new());
        from.fill(SETTLE, clean);
        let export = from.fine(&["export"]);
        shared.write("marks.jsonl", &export);
        let text = shared.fine(&["import", "marks.jsonl"]);
        assert!(text.contains("marks    3 new, 0 raised"), "{text}");
        assert!(text.contains("resets   2 added"), "{text}");
        let there = shared.fine(&["export"]);
        assert_eq!(lines(&there), lines(&export));
        let first: Value = serde_json::from_str(there.lines().next().unwrap()).unwrap();
        assert_eq!((&first["kind"], &first["clean"]), (&"etcd".into(), &clean.into()));
        assert_eq!(first["settle_after_ms"], 60_000);
        back.write("marks.jsonl", &there);
        back.fine(&["import", "marks.jsonl"]);
        assert_eq!(back.contents(), from.contents());
        // And an instance takes it over as it was left.
        let mut instance = instance(&etcd);
        let owner = instance.elected();
        assert_eq!(owner.marks["b"], 9);
        assert_eq!(owner.found.clean, clean);
        assert!(clean || owner.found.settle_after == SETTLE);
    }
}

#[test]
fn looking_changes_nothing() {
    let etcd = Etcd::one();
    let (from, shared) = (Place::new(), place(&etcd));
    for verb in ["inspect", "export"] {
        let (text, code) = shared.refused(&[verb]);
        assert!(text.contains("no store was ever made here"), "{text}");
        assert_eq!(code, 1);
    }
    from.fill(SETTLE, true);
    shared.write("marks.jsonl", from.fine(&["export"]));
    shared.fine(&["import", "--dry-run", "marks.jsonl"]);
    let (text, _) = shared.refused(&["inspect"]);
    assert!(text.contains("no store was ever made here"), "{text}");
    shared.fine(&["import", "marks.jsonl"]);
    let before = look(&shared);
    assert_eq!(
        (&before["owner"], &before["clean"]),
        (&"none".into(), &true.into())
    );
    shared.fine(&["export"]);
    shared.fine(&["import", "--dry-run", "marks.jsonl"]);
    assert_eq!(look(&shared), before);
    assert!(before["revision"].as_str().unwrap().parse::<u64>().unwrap() > 1);
}

#[test]
fn an_owner_is_named_and_keeps_an_import_out() {
    let etcd = Etcd::one();
    let (from, shared) = (Place::new(), place(&etcd));
    from.fill(SETTLE, true);
    shared.write("marks.jsonl", from.fine(&["export"]));
    let mut instance = instance(&etcd);
    let owner = instance.elected();
    owner.insist(&raise("a", 1));
    let before = look(&shared);
    assert_eq!(before["clean"], false);
    assert_ne!(before["owner"], "none");
    let output = shared.run(&["export"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("owns the store and goes on changing it"), "{said}");
    let (text, code) = shared.refused(&["import", "marks.jsonl"]);
    assert!(text.contains("owns the prefix; stop every instance"), "{text}");
    assert_eq!(code, 1);
    assert_eq!(look(&shared)["marks"], before["marks"]);
    owner.ledger.close(true).unwrap();
    drop(instance);
    shared.fine(&["import", "marks.jsonl"]);
}

#[test]
fn an_import_into_etcd_only_raises_and_adds_nothing_twice() {
    let etcd = Etcd::one();
    let (from, shared) = (Place::new(), place(&etcd));
    from.fill(SETTLE, false);
    shared.write("marks.jsonl", from.fine(&["export"]));
    let mut instance = instance(&etcd);
    let owner = instance.elected();
    for each in [raise("a", 6), raise("b", 8), reset("d", 1, "its own")] {
        owner.insist(&each);
    }
    owner.ledger.close(true).unwrap();
    drop(instance);
    let told = shared.fine(&["import", "--dry-run", "marks.jsonl"]);
    let done = shared.fine(&["import", "marks.jsonl"]);
    assert_eq!(told.replace("would be done to ", ""), done);
    for words in [
        "raised  b: 8 -> 9",
        "stays   a: 6, which is higher than the export's 5",
        "1 new, 1 raised, 0 there already, 1 higher in the store",
        "not clean, settle_after 60s",
    ] {
        assert!(done.contains(words), "{done}");
    }
    let after = look(&shared);
    let tokens: Vec<&str> = after["marks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mark| mark["token"].as_str().unwrap())
        .collect();
    assert_eq!(tokens, ["6", "9", "7.1", "1"]);
    assert_eq!(after["reset_count"], 3);
    assert_eq!(
        (&after["clean"], &after["settle_after_ms"]),
        (&false.into(), &60_000.into())
    );
    let again = shared.fine(&["import", "marks.jsonl"]);
    assert!(
        again.contains("0 new, 0 raised, 2 there already, 1 higher"),
        "{again}"
    );
    assert!(again.contains("0 added, 2 there already"), "{again}");
    assert_eq!(look(&shared)["marks"], after["marks"]);
}

#[test]
fn an_import_that_is_killed_is_unclean_and_goes_on_when_it_is_done_again() {
    let etcd = Etcd::one();
    let (from, shared) = (Place::new(), place(&etcd));
    let opened = ledger_common::open(&from.store()).unwrap();
    let answers: Vec<_> = (0..5000)
        .map(|n| ledger_common::submit(&opened.ledger, raise(&format!("r/{n}"), 7)))
        .collect();
    answers
        .into_iter()
        .for_each(|answer| answer.recv().unwrap().unwrap());
    opened.ledger.close(false).unwrap();
    drop(opened);
    shared.write("marks.jsonl", from.fine(&["export"]));
    let mut child = shared
        .command(&["import", "marks.jsonl"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // In the middle, where it is slow enough; the same must hold at its end.
    wait_for("a mark or the end", || {
        let begun = shared.run(&["inspect", "--json"]).stdout;
        let marks =
            serde_json::from_slice(&begun).map_or(0, |seen: Value| seen["mark_count"].as_u64().unwrap());
        (marks > 0 || child.try_wait().unwrap().is_some()).then_some(())
    });
    let _ended_already = child.kill();
    child.wait().unwrap();
    let left = look(&shared);
    assert_eq!(
        (&left["clean"], &left["settle_after_ms"]),
        (&false.into(), &7_000.into())
    );
    // Until its lease has run out it is the owner, and says so.
    let done = wait_for("the end of the lease", || {
        let output = shared.run(&["import", "marks.jsonl"]);
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).unwrap())
    });
    assert!(done.contains("not clean, settle_after 7s"), "{done}");
    assert_eq!(look(&shared)["mark_count"], 5000);
}

#[test]
fn an_operators_word_is_taken_where_there_is_something_to_adopt() {
    let etcd = Etcd::one();
    let (folder, shared) = (Place::new(), place(&etcd));
    let (text, code) = folder.refused(&["adopt", "--reason", "restored"]);
    assert!(text.contains("only a store in etcd is adopted"), "{text}");
    assert_eq!(code, 2);
    let (text, code) = shared.refused(&["adopt", "--reason", "restored"]);
    assert!(text.contains("there is nothing to adopt"), "{text}");
    assert_eq!(code, 1);
    folder.fill(SETTLE, true);
    shared.write("marks.jsonl", folder.fine(&["export"]));
    shared.fine(&["import", "marks.jsonl"]);
    let text = shared.fine(&["adopt", "--reason", "restored"]);
    assert!(text.contains("belongs to the cluster"), "{text}");
    assert_eq!(look(&shared)["clean"], false);
}

#[test]
fn an_etcd_that_does_not_answer_is_said_to() {
    let etcd = Etcd::one();
    let shared = place(&etcd);
    shared.write("marks.jsonl", "");
    drop(etcd);
    let (text, code) = shared.refused(&["inspect"]);
    assert!(
        text.to_lowercase().contains("etcd") || text.contains("http://127.0.0.1"),
        "{text}"
    );
    assert_eq!(code, 1);
    assert!(fs::metadata(shared.path("marks.jsonl")).is_ok());
}
