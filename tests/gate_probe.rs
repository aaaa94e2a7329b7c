//! One look at each backend after the start: a word in the log where it is not there, or not what is configured, and
//! nothing else. The gate starts and answers as it would without, and a backend behind plain TCP is not troubled.

mod backends;
mod gate;
mod redis;

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};

use backends::free_port;
use gate::sessions::{BY_TLV, Backend, Manners, reads, session, tcp};
use gate::{Gate, Pki, Place, Setup, Stub, ask};
use redis::{Client, RULES, Server, setup};

/// What is said of the backend; all of it stands in one line.
#[track_caller]
fn says(gate: &Gate, words: &[&str]) {
    const WARNING: &str = "the backend can't be used as it is configured";
    gate.wait_for_log(WARNING);
    let log = gate.log();
    let line = log.lines().find(|line| line.contains(WARNING)).unwrap();
    for word in ["WARN", "listener=\"store\"", "backend="].iter().chain(words) {
        assert!(line.contains(word), "{line:?} lacks {word:?}");
    }
}

/// Nothing is wrong with it.
#[track_caller]
fn is_fine(gate: &Gate) {
    gate.wait_for_log("the backend is there");
    assert!(!gate.log().contains("can't be used"), "{}", gate.log());
}

fn talkative(setup: Setup) -> Setup {
    setup.top("log: { level: debug }")
}

#[test]
fn a_backend_that_is_not_there_is_told_and_stops_no_start() {
    let port = free_port();
    let gate = Setup::default().start(port);
    let address = format!("http://127.0.0.1:{port}");
    says(&gate, &[&address, "nothing listens there", "upstream.url"]);
    gate.send(ask("PUT", "/orders/1").token(1).body("x"))
        .is(502, "upstream-unreachable");
    let gate = tcp(BY_TLV).start(port);
    says(&gate, &["nothing listens there"]);
    let gate = setup(RULES).start(port);
    says(&gate, &["nothing listens there"]);
}

#[test]
fn a_backend_that_is_there_is_not_troubled() {
    let stub = Stub::start();
    let gate = talkative(Setup::default()).start(stub.port);
    is_fine(&gate);
    gate.send(ask("PUT", "/orders/1").token(1).body("x")).is_ok();
    assert_eq!(stub.look(|state| state.connections), 1);

    let backend = Backend::start(Manners {
        echoes: true,
        ..Manners::default()
    });
    let gate = talkative(tcp(BY_TLV)).start(backend.port);
    is_fine(&gate);
    reads(&mut session(&gate, "a", 1, b"x"), b"x");
    assert_eq!(backend.came().len(), 1);

    let server = Server::start();
    let gate = talkative(setup(RULES)).start(server.port);
    is_fine(&gate);
    assert_eq!(Client::holder(&gate, 1).ask("SET orders:1 a"), "+OK");
}

#[test]
fn a_backend_behind_tls_that_is_there_is_none_to_speak_of() {
    let pki = Pki::new();
    let stub = Stub::start_on(Place::Tls(
        Ipv4Addr::LOCALHOST.into(),
        pki.server("server", false),
    ));
    let gate = talkative(
        Setup::default()
            .url("https://{host}:{port}")
            .upstream(&pki.upstream()),
    );
    is_fine(&gate.start(stub.port));
    let (_server, port) = Server::behind_tls(&pki);
    is_fine(&talkative(setup(RULES).upstream(&pki.upstream())).start(port));
}

#[test]
fn another_protocol_than_redis_is_told() {
    let web = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = web.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in web.incoming().flatten() {
            let _sent = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gate = setup(RULES).start(port);
    says(&gate, &["upstream.url has to lead to a Redis server"]);
}

#[test]
fn a_redis_server_that_wants_another_password_is_told() {
    let server = Server::with(&["requirepass sesame"]);
    says(
        &setup(RULES).start(server.port),
        &[
            "COMMAND",
            "NOAUTH",
            "give upstream a username and a password_file",
        ],
    );
    let password = server.folder.path().join("password");
    std::fs::write(&password, "mustard\n").unwrap();
    let file = format!("password_file: \"{}\"", password.display());
    says(
        &setup(RULES).upstream(&file).start(server.port),
        &[
            "AUTH",
            "WRONGPASS",
            "give upstream a username and a password_file",
        ],
    );
    std::fs::write(&password, "sesame\n").unwrap();
    is_fine(&talkative(setup(RULES).upstream(&file)).start(server.port));
}

#[test]
fn a_backend_that_speaks_no_tls_where_it_should_and_one_that_does_where_it_should_not_are_told() {
    let pki = Pki::new();
    let (server, secure) = Server::behind_tls(&pki);
    let gate = setup(RULES).upstream(&pki.upstream()).start(server.port);
    says(&gate, &["is it a port for TLS"]);
    let gate = setup(RULES).start(secure);
    says(&gate, &["upstream.tls"]);
    let stranger = Pki::new();
    let gate = setup(RULES).upstream(&stranger.upstream()).start(secure);
    says(&gate, &["certificate", "upstream.tls.ca_file"]);
}

/// It takes connections and says nothing: the start is through long before that is known.
#[test]
fn a_backend_that_says_nothing_holds_up_no_start() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut gate = setup(RULES).upstream("response_timeout: 1s").start(port);
    says(&gate, &["has not answered", "within 1s"]);
    let log = gate.log();
    assert!(log.find(" ready ") < log.find("can't be used"), "{log}");
    assert_eq!(gate.stop(), Some(0));
}
