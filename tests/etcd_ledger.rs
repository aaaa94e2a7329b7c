//! The ledger in etcd, against a real one: marks, ownership, take-over. What goes wrong with etcd itself is in
//! `etcd_trouble.rs`.

mod etcd;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd::instance::{PREFIX, SETTLE, shown};
use etcd::{Etcd, Forwarder, Instance, Mode, PATIENCE, Setup, brief, mark, raise, reset, settings, wait_for};
use fencegate::ledger::etcd::{Event, NAME_BYTES_MAX, Reader, Role, adopt};
use fencegate::ledger::{Ledger, StoreError};

#[test]
fn a_new_prefix_counts_as_clean_and_is_marked_dirty_while_it_is_owned() {
    let etcd = Etcd::one();
    let (instance, owner) = Instance::owning(settings(etcd.endpoints()));
    assert!(owner.found.clean);
    assert!(owner.found.settle_after.is_zero());
    assert!(owner.marks.is_empty());
    assert!(owner.ledger.owned());
    let marker = etcd.control().get(&format!("{PREFIX}marker")).unwrap();
    assert!(
        marker.contains(r#""clean":false,"settle_after_ms":7000"#),
        "{marker}"
    );
    assert_eq!(instance.agent.status().role, Role::Owner);
}

#[test]
fn what_was_acknowledged_is_there_for_the_next_owner_after_a_clean_stop() {
    let etcd = Etcd::one();
    let (mut first, owner) = Instance::owning(settings(etcd.endpoints()));
    for (name, token) in [("a", 1), ("b/ß", 7), ("a", 5)] {
        owner.make(raise(name, token)).unwrap();
    }
    owner.ledger.close(true).unwrap();
    assert!(!owner.ledger.owned());
    assert!(matches!(owner.make(raise("a", 9)), Err(StoreError::NotOwner)));
    assert_eq!(etcd.control().get(&format!("{PREFIX}owner")), None);
    assert!(first.next().is_none(), "it stands for nothing any more");
    let (_next_agent, next) = Instance::owning(settings(etcd.endpoints()));
    assert!(next.found.clean);
    assert_eq!(next.found.settle_after, SETTLE);
    assert_eq!(next.marks, [("a".to_owned(), 5), ("b/ß".to_owned(), 7)].into());
}

#[test]
fn the_next_owner_of_an_unclean_stop_finds_the_larger_wait() {
    let etcd = Etcd::one();
    let mut longer = settings(etcd.endpoints());
    longer.settle_after = Duration::from_secs(60);
    let (_first_agent, first) = Instance::owning(longer);
    first.ledger.close(false).unwrap();
    let (_second_agent, second) = Instance::owning(settings(etcd.endpoints()));
    assert!(!second.found.clean);
    assert_eq!(second.found.settle_after, Duration::from_secs(60));
    // It ends before its wait is over.
    second.ledger.close(false).unwrap();
    let (_third_agent, third) = Instance::owning(settings(etcd.endpoints()));
    assert_eq!(third.found.settle_after, Duration::from_secs(60));
    third.ledger.hold_is_over(SETTLE).unwrap();
    third.ledger.close(false).unwrap();
    let (_fourth_agent, fourth) = Instance::owning(settings(etcd.endpoints()));
    assert!(!fourth.found.clean);
    assert_eq!(fourth.found.settle_after, SETTLE);
}

#[test]
fn raises_that_wait_at_once_share_transactions() {
    let etcd = Etcd::one();
    let (instance, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.insist_on_all((0..1000).map(|n| raise(&format!("r{n}"), 1 + n)));
    let commits = instance.commits.load(Ordering::SeqCst);
    assert!(commits <= 20, "{commits} transactions");
    assert_eq!(etcd.control().count(&format!("{PREFIX}mark/")), 1000);
}

#[test]
fn a_server_that_takes_few_operations_gets_few() {
    let etcd = Setup::members(1).flag("--max-txn-ops=16").start();
    let (_instance, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.insist_on_all((0..200).map(|n| raise(&format!("r{n}"), 1 + n)));
    assert_eq!(etcd.control().count(&format!("{PREFIX}mark/")), 200);
    owner.make(reset("r1", 0, "why not")).unwrap();
}

#[test]
fn names_as_long_as_requests_allow_are_taken_and_longer_ones_are_refused_clearly() {
    let etcd = Etcd::one();
    let (_instance, owner) = Instance::owning(settings(etcd.endpoints()));
    let name = |n: usize| format!("{n:02}{}", "x".repeat(NAME_BYTES_MAX - 2));
    owner.insist_on_all((0..40).map(|n| raise(&name(n), 1)));
    let error = owner.make(raise(&format!("{}x", name(1)), 1)).unwrap_err();
    assert!(error.to_string().contains("131073 bytes"), "{error}");
    // Five megabytes may take a small etcd on a busy machine longer than one question may.
    let end = Instant::now() + PATIENCE;
    let scanned = loop {
        match owner.ledger.scan("", None, 100) {
            Err(StoreError::Away(_)) if Instant::now() < end => {}
            scanned => break scanned.unwrap(),
        }
    };
    assert_eq!(scanned.len(), 40);
    owner.ledger.close(true).unwrap();
    // More than an answer may have: they are read in smaller pages.
    assert_eq!(
        Instance::start(settings(etcd.endpoints())).elected().marks.len(),
        40
    );
}

#[test]
fn a_server_that_takes_small_requests_gets_small_ones() {
    let etcd = Setup::members(1).flag("--max-request-bytes=20000").start();
    let (_instance, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.insist_on_all((0..300).map(|n| raise(&format!("{n}{}", "x".repeat(300)), 1)));
    let error = owner.make(raise(&"y".repeat(30_000), 1)).unwrap_err();
    assert!(
        error.to_string().contains("more bytes than etcd takes"),
        "{error}"
    );
}

#[test]
fn a_raise_never_lowers_a_mark_and_a_reset_does_and_is_recorded_with_it() {
    let etcd = Etcd::one();
    let (_instance, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.make(raise("a", 9)).unwrap();
    owner.make(raise("a", 5)).unwrap();
    assert_eq!(
        owner.ledger.scan("", None, 9).unwrap(),
        [("a".to_owned(), mark(9))]
    );
    owner.make(reset("a", 3, "the first")).unwrap();
    owner.make(reset("b", 4, "the second")).unwrap();
    owner.make(raise("a", 4)).unwrap();
    let marks = owner.ledger.scan("", None, 9).unwrap();
    assert_eq!(marks, [("a".to_owned(), mark(4)), ("b".to_owned(), mark(4))]);
    let trail = owner.ledger.audit_trail(9).unwrap();
    let told: Vec<_> = trail
        .iter()
        .map(|entry| (entry.sequence, &*entry.name, &*entry.audit.reason))
        .collect();
    assert_eq!(told, [(1, "b", "the second"), (0, "a", "the first")]);
    assert_eq!(owner.ledger.audit_trail(1).unwrap().len(), 1);
    owner.ledger.close(true).unwrap();
    let (_next_agent, next) = Instance::owning(settings(etcd.endpoints()));
    next.make(reset("a", 1, "the third")).unwrap();
    assert_eq!(next.ledger.audit_trail(1).unwrap()[0].sequence, 2);
}

#[test]
fn marks_are_shown_in_order_by_prefix_and_page() {
    let etcd = Etcd::one();
    let (_instance, owner) = Instance::owning(settings(etcd.endpoints()));
    for name in ["a", "a/1", "a/2", "a/3", "b", "ß"] {
        owner.make(raise(name, 1)).unwrap();
    }
    let names = |prefix: &str, after: Option<&str>, limit| -> Vec<String> {
        let found = owner.ledger.scan(prefix, after, limit).unwrap();
        found.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names("", None, 9), ["a", "a/1", "a/2", "a/3", "b", "ß"]);
    assert_eq!(names("a/", None, 2), ["a/1", "a/2"]);
    assert_eq!(names("a/", Some("a/2"), 2), ["a/3"]);
    assert_eq!(names("a/", Some("b"), 2), Vec::<String>::new());
    assert_eq!(names("b", Some("a"), 2), ["b"]);
    assert_eq!(names("", None, 0), Vec::<String>::new());
}

#[test]
fn one_of_two_owns_and_the_other_comes_when_it_ends() {
    let etcd = Etcd::one();
    let (_first, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.make(raise("a", 5)).unwrap();
    let mut second = settings(etcd.endpoints());
    second.instance = "the second".to_owned();
    let mut second = Instance::start(second);
    wait_for("a standby that knows the owner", || {
        let status = second.agent.status();
        (status.role == Role::Standby && status.owner.as_deref() == Some("an instance")).then_some(())
    });
    assert!(second.is_quiet());
    owner.ledger.close(true).unwrap();
    let next = second.elected();
    assert_eq!(next.marks["a"], 5);
    assert!(next.found.clean);
}

#[test]
fn an_instance_that_is_cut_off_is_no_owner_before_another_one_is() {
    let etcd = Etcd::one();
    let path = Forwarder::before(etcd.members[0].client_port);
    let (mut first, owner) = Instance::owning(brief(vec![path.endpoint()]));
    let mut second = Instance::start(brief(etcd.endpoints()));
    path.set(Mode::Hold);
    let taken = std::thread::spawn(move || (second.elected(), second));
    while !taken.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The second one may have been elected some moments ago; the first must have ended before that.
    assert!(!owner.ledger.owned());
    let (next, _second) = taken.join().unwrap();
    assert!(!next.found.clean);
    assert!(matches!(first.next(), Some(Event::Lapsed)));
    path.set(Mode::Pass);
    first.ended();
    assert!(owner.ledger.over().is_some());
    assert!(owner.ledger.close(true).is_err());
    next.make(raise("a", 1)).unwrap();
    assert!(next.ledger.owned());
}

#[test]
fn a_lease_that_is_revoked_ends_the_tenure_and_the_instance_stands_again() {
    let etcd = Etcd::one();
    let (mut instance, owner) = Instance::owning(brief(etcd.endpoints()));
    let control = etcd.control();
    let lease = control.lease_of(&format!("{PREFIX}owner"));
    control.must(async |mut client| client.lease_revoke(lease).await);
    let reason = instance.ended();
    assert!(reason.contains("lease") || reason.contains("gone"), "{reason}");
    assert!(!owner.ledger.owned());
    assert!(owner.make(raise("a", 1)).is_err());
    let again = instance.elected();
    assert!(!again.found.clean);
    again.make(raise("a", 1)).unwrap();
    assert!(!owner.ledger.owned(), "the earlier tenure stays over");
}

#[test]
fn an_owners_key_that_is_deleted_by_hand_ends_the_tenure() {
    let etcd = Etcd::one();
    let (mut instance, owner) = Instance::owning(brief(etcd.endpoints()));
    etcd.control().delete(&format!("{PREFIX}owner"));
    let refused = owner.make(raise("a", 1));
    assert!(refused.is_err(), "no mark is written without the owner's key");
    instance.ended();
    assert!(!owner.ledger.owned());
    assert_eq!(etcd.control().count(&format!("{PREFIX}mark/")), 0);
}

#[test]
fn a_mark_that_somebody_else_has_written_ends_the_tenure() {
    let etcd = Etcd::one();
    let (mut instance, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.make(raise("a", 5)).unwrap();
    let key = format!("{PREFIX}mark/a");
    let higher = etcd.control().get(&key).unwrap().replace(r#""5""#, r#""50""#);
    etcd.control().put(&key, &higher);
    assert!(owner.make(raise("a", 6)).is_err());
    let reason = instance.ended();
    assert!(reason.contains("somebody else"), "{reason}");
    assert_eq!(instance.elected().marks["a"], 50);
}

#[test]
fn a_raise_whose_answer_was_lost_is_read_again_and_never_lands_twice() {
    let etcd = Etcd::one();
    let path = Forwarder::before(etcd.members[0].client_port);
    let (_instance, owner) = Instance::owning(settings(vec![path.endpoint()]));
    owner.make(raise("a", 1)).unwrap();
    path.set(Mode::HoldAnswers);
    let answer = owner.submit(raise("a", 5));
    let control = etcd.control();
    wait_for("the raise in etcd", || {
        control
            .get(&format!("{PREFIX}mark/a"))
            .filter(|value| value.contains(r#""5""#))
    });
    assert!(answer.recv().unwrap().is_err(), "nobody knows that it is there");
    path.set(Mode::Pass);
    owner.insist(&raise("a", 5));
    owner.insist(&raise("a", 6));
    owner.make(reset("a", 2, "down")).unwrap();
    let value = control.get(&format!("{PREFIX}mark/a")).unwrap();
    assert!(value.contains(r#""2""#), "{value}");
}

#[test]
fn a_raise_that_was_given_up_does_not_land_after_a_reset() {
    let etcd = Etcd::one();
    let slow = Forwarder::before(etcd.members[0].client_port);
    // The slow way is asked first; then the other one.
    let (_instance, owner) = Instance::owning(settings(vec![slow.endpoint(), etcd.endpoint(0)]));
    owner.make(raise("a", 1)).unwrap();
    slow.set(Mode::Hold);
    owner.insist(&raise("a", 5));
    owner.insist(&reset("a", 2, "down"));
    // What was held comes now: the raise to 5, on a revision that is gone.
    slow.set(Mode::Pass);
    owner.insist(&raise("b", 1));
    let value = etcd.control().get(&format!("{PREFIX}mark/a")).unwrap();
    assert!(value.contains(r#""2""#), "{value}");
    assert!(owner.ledger.owned());
    assert_eq!(owner.ledger.audit_trail(9).unwrap().len(), 1);
}

#[test]
fn an_unreadable_mark_or_another_format_stops_the_instance_and_names_the_key() {
    let etcd = Etcd::one();
    let (_first_agent, first) = Instance::owning(settings(etcd.endpoints()));
    first.make(raise("a", 5)).unwrap();
    first.ledger.close(true).unwrap();
    let control = etcd.control();
    let key = format!("{PREFIX}mark/b");
    for (value, words) in [("no mark", "can't be read"), (r#"{"format":2}"#, "has format 2")] {
        control.put(&key, value);
        let mut instance = Instance::start(settings(etcd.endpoints()));
        let error = instance.fatal();
        assert!(error.contains(&key) && error.contains(words), "{error}");
        assert!(instance.next().is_none());
        assert_eq!(
            control.get(&format!("{PREFIX}owner")),
            None,
            "it has given the prefix up"
        );
        let marker = control.get(&format!("{PREFIX}marker")).unwrap();
        assert!(marker.contains(r#""clean":true"#), "as it was found: {marker}");
    }
    control.delete(&key);
    control.put(&format!("{PREFIX}marker"), "{}");
    let error = Instance::start(settings(etcd.endpoints())).fatal();
    assert!(error.contains("marker"), "{error}");
    control.delete(&format!("{PREFIX}marker"));
    let error = Instance::start(settings(etcd.endpoints())).fatal();
    assert!(error.contains("is missing beside"), "{error}");
}

#[test]
fn an_unreadable_mark_stops_also_who_would_only_stand_by() {
    let etcd = Etcd::one();
    let (_agent, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.make(raise("a", 5)).unwrap();
    let key = format!("{PREFIX}mark/b");
    etcd.control().put(&key, "no mark");
    let error = Instance::start(settings(etcd.endpoints())).fatal();
    assert!(error.contains(&key) && error.contains("can't be read"), "{error}");
    assert!(owner.ledger.owned(), "the owner knows nothing of it");
}

#[test]
fn marks_without_a_marker_are_no_new_prefix() {
    let etcd = Etcd::one();
    etcd.control().put(
        &format!("{PREFIX}mark/a"),
        r#"{"format":1,"token":"5","token_format":"integer","raised_at_ms":0}"#,
    );
    let error = Instance::start(settings(etcd.endpoints())).fatal();
    assert!(error.contains("is missing beside"), "{error}");
}

#[test]
fn an_agent_that_is_stopped_gives_the_prefix_up_as_unclean() {
    let etcd = Etcd::one();
    let (first, owner) = Instance::owning(settings(etcd.endpoints()));
    first.agent.stop();
    assert!(!owner.ledger.owned());
    assert!(matches!(owner.make(raise("a", 1)), Err(StoreError::NotOwner)));
    assert!(owner.ledger.close(true).is_err());
    let (_next_agent, next) = Instance::owning(settings(etcd.endpoints()));
    assert!(!next.found.clean);
}

#[test]
fn a_reader_sees_one_revision_and_owns_nothing() {
    let etcd = Etcd::one();
    let unused = Reader::open(settings(etcd.endpoints())).unwrap();
    assert!(unused.view().found.is_none() && unused.view().owner.is_none());
    let (_instance, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.make(raise("a", 5)).unwrap();
    let reader = Reader::open(settings(etcd.endpoints())).unwrap();
    owner.make(raise("a", 6)).unwrap();
    owner.make(raise("b", 6)).unwrap();
    assert_eq!(reader.scan("", None, 9).unwrap(), [("a".to_owned(), mark(5))]);
    assert_eq!(reader.view().owner.as_deref(), Some("an instance"));
    assert_eq!(reader.view().made_in.as_ref(), Some(&reader.view().cluster));
    let refused = adopt(settings(etcd.endpoints()), "why not", "ops").unwrap_err();
    assert!(
        refused.to_string().contains("an instance owns the prefix"),
        "{refused}"
    );
    assert!(owner.ledger.owned());
}

#[test]
fn settings_that_can_not_be_used_are_refused_by_name() {
    let mut bad = settings(vec![]);
    let refused = |settings| match fencegate::ledger::etcd::Agent::start(
        settings,
        std::sync::Arc::new(|_| ()),
        tokio::sync::mpsc::unbounded_channel().0,
    ) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was taken"),
    };
    assert!(refused(bad.clone()).contains("no endpoint"));
    bad.endpoints = vec!["127.0.0.1:2379".to_owned()];
    assert!(refused(bad.clone()).contains("http://"));
    bad.endpoints = vec!["http://127.0.0.1:2379".to_owned()];
    bad.prefix = "/a".to_owned();
    assert!(refused(bad.clone()).contains("slash"));
    bad.prefix = "/a/".to_owned();
    bad.owner_ttl = Duration::from_millis(10);
    assert!(refused(bad).contains("too short"));
    assert_eq!(shown(None), "the end of all");
}
