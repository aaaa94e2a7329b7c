//! The ledger in etcd where etcd is away, hangs, is full, has users, forgets, or is another one.

mod etcd;

use std::time::{Duration, Instant};

use etcd::instance::PREFIX;
use etcd::{Etcd, Forwarder, Instance, Mode, Setup, brief, raise, reset, settings, wait_for};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Certificate, Identity, Permission, TlsOptions};
use fencegate::base::Secret;
use fencegate::config::Password;
use fencegate::ledger::etcd::{Event, Login, Reader, Role, Tls, adopt};
use fencegate::ledger::{Ledger, StoreError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

#[test]
fn an_etcd_that_is_away_at_the_start_is_waited_for() {
    let mut etcd = Etcd::one();
    etcd.kill(0);
    let mut instance = Instance::start(settings(etcd.endpoints()));
    wait_for("a reason", || instance.agent.status().unreachable);
    assert!(instance.is_quiet());
    etcd.run(0);
    instance.elected();
    assert_eq!(instance.agent.status().unreachable, None);
}

#[test]
fn a_dead_endpoint_beside_a_live_one_is_passed_over() {
    let etcd = Etcd::one();
    let dead = format!("http://127.0.0.1:{}", etcd::member::free_port());
    let hangs = Forwarder::before(etcd.members[0].client_port);
    hangs.set(Mode::Hold);
    let (_instance, owner) = Instance::owning(settings(vec![dead, hangs.endpoint(), etcd.endpoint(0)]));
    owner.make(raise("a", 1)).unwrap();
}

#[test]
fn each_member_of_three_may_hang_and_marks_go_on() {
    let etcd = Setup::members(3).start();
    // Elections within etcd take a second or two, of its long life.
    let (mut instance, owner) = Instance::owning(settings(etcd.endpoints()));
    for n in 0..3 {
        etcd.stop(n);
        for token in 0..5 {
            owner.insist(&raise("a", 10 * n as u128 + token + 1));
        }
        assert!(owner.ledger.owned());
        etcd.resume(n);
        etcd.wait_until_ready();
    }
    assert!(instance.is_quiet(), "no tenure ended");
    assert_eq!(
        owner.ledger.scan("", None, 9).unwrap()[0].1.token,
        fencegate::base::Token(25)
    );
}

#[test]
fn a_leader_that_moves_ends_no_tenure() {
    let etcd = Setup::members(3).start();
    let (mut instance, owner) = Instance::owning(settings(etcd.endpoints()));
    for round in 0..3 {
        let leader = etcd.leader();
        let to = etcd
            .control_of((leader + 1) % 3)
            .must(async |mut client| client.status().await)
            .header()
            .unwrap()
            .member_id();
        let _moved = etcd
            .control_of(leader)
            .run(async move |mut client| client.move_leader(to).await);
        owner.insist(&raise("a", round + 1));
    }
    assert!(owner.ledger.over().is_none());
    owner.ledger.close(true).unwrap();
    assert!(
        instance
            .next()
            .is_none_or(|event| matches!(event, Event::Lapsed | Event::Regained))
    );
}

#[test]
fn a_member_without_a_majority_makes_nobody_the_owner() {
    let mut etcd = Setup::members(3).start();
    etcd.kill(1);
    etcd.kill(2);
    let mut alone = Instance::start(settings(vec![etcd.endpoint(0)]));
    wait_for("a reason", || alone.agent.status().unreachable);
    assert!(alone.is_quiet());
    etcd.run(1);
    alone.elected();
}

#[test]
fn a_full_database_refuses_raises_and_recovers_by_the_operators_hand() {
    let etcd = Setup::members(1).flag("--quota-backend-bytes=2097152").start();
    let mut lives = settings(etcd.endpoints());
    lives.owner_ttl = Duration::from_secs(9);
    let (mut instance, owner) = Instance::owning(lives);
    owner.make(raise("a", 42)).unwrap();
    let control = etcd.control();
    let filler = "x".repeat(200_000);
    wait_for("a full database", || {
        control
            .run(async |mut client| client.put("filler", filler.clone(), None).await)
            .err()
            .filter(|error| error.contains("space"))
    });
    assert!(matches!(owner.make(raise("a", 43)), Err(StoreError::Full(_))));
    // More than a lease's life: several renewals.
    let until = Instant::now() + Duration::from_secs(10);
    wait_for("some seconds", || (Instant::now() > until).then_some(()));
    assert!(owner.ledger.owned(), "renewals need no room");
    assert!(instance.is_quiet());
    let revision = control.revision();
    control.must(async |mut client| client.compact(revision, None).await);
    control.must(async |mut client| client.defragment().await);
    let member = control.must(async |mut client| client.status().await);
    let member = member.header().unwrap().member_id();
    control.must(async move |mut client| {
        let mut of_it = AlarmOptions::new();
        of_it.with_member(member);
        client
            .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of_it))
            .await
    });
    owner.insist(&raise("a", 43));
}

#[test]
fn marks_are_read_in_pages_also_where_somebody_compacts_meanwhile() {
    let etcd = Etcd::one();
    let (_agent, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.insist_on_all((0..20_000).map(|n| raise(&format!("r{n}"), 1 + n)));
    owner.ledger.close(true).unwrap();
    let control = etcd.control();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let control = etcd.control();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                control.put("other", "x");
                let revision = control.revision();
                let _compacted = control.run(async move |mut client| client.compact(revision, None).await);
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let (_agent, next) = Instance::owning(settings(etcd.endpoints()));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(next.marks.len(), 20_000);
        assert_eq!(next.marks["r19999"], 20_000);
    });
    assert_eq!(control.count(&format!("{PREFIX}mark/")), 20_000);
}

#[test]
fn users_whose_login_expires_or_changes_are_logged_in_again() {
    let mut etcd = Setup::members(1).flag("--auth-token-ttl=1").start();
    let control = etcd.control();
    control.must(async |mut client| client.role_add("gate").await);
    let prefix = PREFIX;
    control.must(async |mut client| {
        let all = Permission::read_write(prefix).with_prefix();
        client.role_grant_permission("gate", all).await
    });
    for (user, role) in [("root", "root"), ("gate", "gate")] {
        let _known = control.run(async move |mut client| client.role_add(role).await);
        control.must(async |mut client| client.user_add(user, "secret", None).await);
        control.must(async |mut client| client.user_grant_role(user, role).await);
    }
    let mut with_login = settings(etcd.endpoints());
    // Renewed several times meanwhile.
    with_login.owner_ttl = Duration::from_secs(9);
    with_login.login = Some(Login {
        username: "gate".to_owned(),
        password: Password::Given(Secret::of_file(b"secret").unwrap()),
    });
    // Without users a login is not asked for.
    let (_early, owner) = Instance::owning(with_login.clone());
    control.must(async |client| client.auth_client().auth_enable().await);
    etcd.setup.user = Some(("root".to_owned(), "secret".to_owned()));
    owner.insist(&raise("a", 1));
    let control = etcd.control();
    for token in 2..5 {
        // Each change makes the revision of the users' store a new one.
        let name = format!("role{token}");
        control.must(async |mut client| client.role_add(name.clone()).await);
        owner.insist(&raise("a", token));
        let until = Instant::now() + Duration::from_millis(2500);
        wait_for("an expired login", || (Instant::now() > until).then_some(()));
        owner.insist(&raise("b", token));
    }
    assert!(owner.ledger.over().is_none(), "{:?}", owner.ledger.over());
    owner.ledger.close(true).unwrap();
    let mut wrong = with_login.clone();
    wrong.login = Some(Login {
        username: "gate".to_owned(),
        password: Password::Given(Secret::of_file(b"wrong").unwrap()),
    });
    let stands_by = Instance::start(wrong);
    let why = wait_for("a reason", || stands_by.agent.status().unreachable);
    assert!(why.contains("authentication failed"), "{why}");
    let mut elsewhere = with_login;
    elsewhere.prefix = "/not/allowed/".to_owned();
    let stands_by = Instance::start(elsewhere);
    let why = wait_for("a reason", || stands_by.agent.status().unreachable);
    assert!(why.contains("permission denied"), "{why}");
}

#[test]
fn certificates_are_shown_and_checked_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(path("ca.pem"), authority.pem()).unwrap();
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let cert = params.signed_by(&key, &authority).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(path(&format!("{name}.pem")), cert.pem()).unwrap();
    }
    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let mut setup = Setup::members(1).flag("--client-cert-auth");
    for (flag, file) in [
        ("cert-file", "server.pem"),
        ("key-file", "server.key"),
        ("trusted-ca-file", "ca.pem"),
    ] {
        setup = setup.flag(&format!("--{flag}={}", path(file).display()));
    }
    setup.tls = Some(
        TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read("ca.pem")))
            .identity(Identity::from_pem(read("client.pem"), read("client.key"))),
    );
    let etcd = setup.start();
    let mut secure = settings(etcd.endpoints());
    secure.tls = Some(Tls {
        ca_file: Some(path("ca.pem")),
        pair: Some((path("client.pem"), path("client.key"))),
        server_name: None,
    });
    let (_agent, owner) = Instance::owning(secure.clone());
    owner.make(raise("a", 1)).unwrap();
    owner.ledger.close(true).unwrap();
    let mut without = secure.clone();
    without.tls = Some(Tls {
        pair: None,
        ..without.tls.unwrap()
    });
    let mut stranger = secure;
    stranger.tls = Some(Tls {
        ca_file: Some(path("server.pem")),
        ..stranger.tls.unwrap()
    });
    for settings in [without, stranger] {
        let mut refused = Instance::start(settings);
        wait_for("a reason", || refused.agent.status().unreachable);
        assert!(refused.is_quiet());
    }
}

#[test]
fn an_older_copy_that_was_restored_is_refused_until_an_operator_adopts_it() {
    let mut etcd = Etcd::one();
    let (mut instance, owner) = Instance::owning(brief(etcd.endpoints()));
    owner.make(raise("a", 40)).unwrap();
    let copy = etcd.path("copy");
    etcd.snapshot(&copy);
    for token in 41..60 {
        owner.make(raise("a", token)).unwrap();
    }
    etcd.restore(&copy, "etcd-cluster");
    instance.ended();
    assert!(!owner.ledger.owned());
    let why = wait_for("a doubt", || instance.agent.status().history);
    assert!(
        why.contains("older copy") || why.contains("copy was restored"),
        "{why}"
    );
    assert_eq!(instance.agent.status().role, Role::Standby);
    adopt_once_nobody_owns(&etcd);
    let next = instance.elected();
    assert_eq!(next.marks["a"], 40);
    assert!(!next.found.clean, "the next owner waits");
    assert_eq!(instance.agent.status().history, None);
    next.make(raise("a", 61)).unwrap();
}

#[test]
fn another_cluster_at_the_same_address_is_refused_until_an_operator_adopts_it() {
    let mut etcd = Etcd::one();
    let (agent, owner) = Instance::owning(settings(etcd.endpoints()));
    owner.make(raise("a", 40)).unwrap();
    owner.ledger.close(true).unwrap();
    drop(agent);
    let copy = etcd.path("copy");
    etcd.snapshot(&copy);
    etcd.restore(&copy, "another");
    // One that knows nothing of it but what stands there.
    let mut instance = Instance::start(settings(etcd.endpoints()));
    let why = wait_for("a doubt", || instance.agent.status().history);
    assert!(why.contains("belongs to cluster"), "{why}");
    assert!(instance.is_quiet());
    let adopted = adopt_once_nobody_owns(&etcd);
    let view = Reader::open(settings(etcd.endpoints())).unwrap().view().clone();
    assert_eq!(
        (adopted, view.found.unwrap().clean),
        (view.cluster.clone(), false)
    );
    let next = instance.elected();
    assert_eq!(next.marks["a"], 40);
    next.make(reset("a", 41, "after the adoption")).unwrap();
    let trail = next.ledger.audit_trail(9).unwrap();
    assert_eq!(trail.len(), 1, "an adoption is no reset");
    assert_eq!(trail[0].sequence, 1, "and stands in the same trail");
}

#[test]
fn an_empty_etcd_in_place_of_the_known_one_is_refused() {
    let mut etcd = Etcd::one();
    let (mut instance, _owner) = Instance::owning(brief(etcd.endpoints()));
    etcd.kill(0);
    std::fs::remove_dir_all(etcd.data(0)).unwrap();
    etcd.run(0);
    etcd.wait_until_ready();
    instance.ended();
    wait_for("a doubt", || instance.agent.status().history);
    assert!(instance.is_quiet());
    assert_eq!(etcd.control().count(PREFIX), 0, "nothing is written there");
}

#[test]
fn an_owner_that_lapsed_goes_on_where_its_lease_still_lives() {
    let etcd = Etcd::one();
    let path = Forwarder::before(etcd.members[0].client_port);
    let (mut instance, owner) = Instance::owning(brief(vec![path.endpoint()]));
    let control = etcd.control();
    let lease = control.lease_of(&format!("{PREFIX}owner"));
    path.set(Mode::Cut);
    // Somebody else keeps the lease alive, as a new leader of etcd does when it makes all leases longer.
    wait_for("a lapse", || {
        control.must(async move |mut client| client.lease_keep_alive(lease).await);
        (!owner.ledger.owned()).then_some(())
    });
    assert!(matches!(instance.next(), Some(Event::Lapsed)));
    assert_eq!(instance.agent.status().role, Role::Lapsed);
    assert!(owner.make(raise("a", 1)).is_err());
    control.must(async move |mut client| client.lease_keep_alive(lease).await);
    path.set(Mode::Pass);
    assert!(matches!(instance.next(), Some(Event::Regained)));
    assert!(owner.ledger.owned());
    owner.insist(&raise("a", 1));
}

/// An instance whose lease still lives in the copy keeps it until that is over.
fn adopt_once_nobody_owns(etcd: &Etcd) -> String {
    wait_for("an adoption", || {
        adopt(settings(etcd.endpoints()), "restored from a copy", "ops")
            .ok()
            .map(|adopted| adopted.cluster)
    })
}
