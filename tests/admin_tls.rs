//! The admin address by TLS, against a running gate: curl, and `fencegate fences`.

mod gate;

use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fencegate::config;
use gate::{Gate, PATIENCE, Pki, Setup, Stub, ask};

/// A gate whose admin address has these keys too.
fn start(keys: &str) -> (Stub, Gate) {
    let stub = Stub::start();
    let setup = Setup {
        admin: format!(", {keys}"),
        ..Setup::default()
    };
    let gate = setup.start(stub.port);
    gate.send(ask("PUT", "/docs/report").token(34)).is_ok();
    (stub, gate)
}

/// What curl says of this path: its status and its version of HTTP.
fn curl(gate: &Gate, pki: &Pki, host: &str, path: &str, words: &[&str]) -> (String, Output) {
    let output = Command::new("curl")
        .args(["-sS", "--noproxy", "*", "--max-time", "20"])
        .args(["--cacert", &pki.show("ca.pem")])
        .args(["--resolve", &format!("{host}:{}:127.0.0.1", gate.admin)])
        .args(["-w", "\n%{http_code} %{http_version}"])
        .args(words)
        .arg(format!("https://{host}:{}{path}", gate.admin))
        .output()
        .expect("curl is installed by .ci/setup");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text.lines().last().unwrap_or_default().to_owned(), output)
}

/// `fencegate fences` with nobody at the terminal.
fn fences(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .arg("fences")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn is_fine(output: &Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn failed(output: &Output, code: i32, words: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert!(err.contains(words), "{err}");
}

#[test]
fn beyond_loopback_tls_alone_is_not_enough() {
    let pki = Pki::new();
    let token = pki.path("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let token = format!("token_file: {}", token.display());
    let (tls, both) = (pki.listener("server"), pki.listener_asking_clients("server"));
    let read = |bind: &str, keys: &[&str]| {
        let text = format!(
            "version: 1\nadmin: {{ bind: \"{bind}:9901\", {} }}\nlisteners:\n  - name: a\n    bind: \"127.0.0.1:80\"\n    upstream: {{ url: \"http://s\", response_timeout: 30s }}\n    rules:\n      - {{ name: r, match: {{ path: \"/{{*k}}\" }}, resource: k, token: {{ header: T }} }}\n",
            keys.join(", ")
        );
        let show = |found: &[config::Problem]| found.iter().map(|p| p.to_string() + "\n").collect();
        match config::parse("f", &text, &|_| None) {
            Ok((_, warnings)) => Ok::<String, String>(show(&warnings)),
            Err(problems) => Err(show(&problems.0)),
        }
    };
    for (bind, keys) in [
        ("127.0.0.1", &[&*tls][..]),
        ("127.0.0.1", &[&*both]),
        ("0.0.0.0", &[&*both]),
        ("0.0.0.0", &[&*tls, &*token]),
        ("[::]", &[&*both, &*token]),
    ] {
        assert_eq!(read(bind, keys), Ok(String::new()), "{bind} {keys:?}");
    }
    let clear = read("0.0.0.0", &[&token]).unwrap();
    assert!(
        clear.contains("f:2:16: ") && clear.contains("admin.tls would hide it"),
        "{clear}"
    );
    let open = read("0.0.0.0", &[&tls]).unwrap_err();
    assert!(
        open.starts_with("f:2:16: ") && open.contains("client_ca_file"),
        "{open}"
    );
    assert_eq!(open.lines().count(), 1, "{open}");
    // A file that can't be read is the one problem, whatever else would hold.
    let unread = read("0.0.0.0", &["tls: { cert_file: /none, key_file: /none }"]).unwrap_err();
    assert!(
        unread.contains("admin.tls.cert_file: ") && unread.lines().count() == 1,
        "{unread}"
    );
}

#[test]
fn all_of_it_is_there_by_tls_and_nothing_without() {
    let pki = Pki::new();
    let (_stub, gate) = start(&pki.listener("server"));
    for path in ["/metrics", "/readyz", "/api/v1/fences", "/api/v1/config"] {
        let (said, output) = curl(&gate, &pki, "localhost", path, &[]);
        assert_eq!(said, "200 1.1", "{path}: {}", is_fine(&output));
    }
    let (_, output) = curl(&gate, &pki, "localhost", "/api/v1/config", &[]);
    let shown = is_fine(&output);
    assert!(
        shown.contains("server.key") && !shown.contains("PRIVATE"),
        "{shown}"
    );
    let plain = ask("GET", "/api/v1/fences").try_send(gate.admin);
    assert!(plain.is_err(), "{plain:?}");
}

#[test]
fn a_scrape_by_tls_shows_when_the_certificate_expires_and_counts_failed_handshakes() {
    let pki = Pki::new();
    let (_stub, gate) = start(&pki.listener("server"));
    let failed = ask("GET", "/").try_send(gate.admin);
    assert!(failed.is_err(), "{failed:?}");
    let (_, output) = curl(&gate, &pki, "localhost", "/metrics", &[]);
    let text = is_fine(&output);
    for line in [
        "fencegate_tls_handshake_failures_total{listener=\"\"} 1",
        "fencegate_tls_last_reload_successful{listener=\"\",side=\"admin\"} 1",
        "fencegate_tls_certificate_expiry_timestamp_seconds{listener=\"\",side=\"admin\"} ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn with_client_ca_file_nobody_gets_in_without_a_certificate() {
    let (pki, foreign) = (Pki::new(), Pki::new());
    pki.issue("operator", &["operator.test"]);
    let (_stub, gate) = start(&pki.listener_asking_clients("server"));
    for path in ["/metrics", "/healthz", "/api/v1/fences"] {
        let (said, output) = curl(&gate, &pki, "localhost", path, &[]);
        assert!(!output.status.success(), "{said}");
    }
    let (cert, key) = (pki.show("operator.pem"), pki.show("operator.key"));
    let shown = ["--cert", &cert, "--key", &key];
    assert_eq!(
        curl(&gate, &pki, "localhost", "/api/v1/fences", &shown).0,
        "200 1.1"
    );
    let (cert, key) = (foreign.show("server.pem"), foreign.show("server.key"));
    let other = ["--cert", &cert, "--key", &key];
    let (said, output) = curl(&gate, &pki, "localhost", "/api/v1/fences", &other);
    assert!(!output.status.success(), "{said}");
}

/// A browser shows its user's certificate to whatever page asks: the page's own address gives it away.
#[test]
fn by_tls_a_page_of_another_site_can_not_raise_and_its_own_name_may_be_any() {
    let pki = Pki::new();
    pki.issue("gate", &["gate.internal"]);
    let (_stub, gate) = start(&pki.listener("gate"));
    let raise = |origin: &str| {
        let origin = format!("Origin: {origin}");
        let words = [
            "-H",
            "Content-Type: application/json",
            "-H",
            &origin,
            "-d",
            r#"{"resource":"bucket/docs","token":"35"}"#,
        ];
        curl(&gate, &pki, "gate.internal", "/api/v1/fences/raise", &words).0
    };
    assert_eq!(raise("https://evil.example"), "403 1.1");
    assert_eq!(raise(&format!("http://gate.internal:{}", gate.admin)), "403 1.1");
    gate.send(ask("PUT", "/docs/report").token(34)).is_ok();
    assert_eq!(raise(&format!("https://gate.internal:{}", gate.admin)), "200 1.1");
    gate.send(ask("PUT", "/docs/report").token(34))
        .is(412, "stale-token");
}

#[test]
fn the_token_is_asked_for_by_tls_as_well() {
    let pki = Pki::new();
    let token = pki.show("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let keys = format!("{}, token_file: {token}", pki.listener("server"));
    let (_stub, gate) = start(&keys);
    let path = "/api/v1/fences";
    assert_eq!(curl(&gate, &pki, "localhost", path, &[]).0, "401 1.1");
    let shown = ["-H", "Authorization: Bearer 0123456789abcdef"];
    assert_eq!(curl(&gate, &pki, "localhost", path, &shown).0, "200 1.1");
    let url = format!("https://localhost:{}", gate.admin);
    let ca = pki.show("ca.pem");
    let words = ["list", "--admin", &url, "--ca-file", &ca];
    failed(&fences(&words), 1, "unauthorized");
    let with_token = [&words[..], &["--token-file", &token]].concat();
    assert!(is_fine(&fences(&with_token)).contains("34"));
}

#[test]
fn the_command_line_shows_its_certificate_and_asks_for_the_gates() {
    let (pki, foreign) = (Pki::new(), Pki::new());
    pki.issue("operator", &["operator.test"]);
    let (_stub, gate) = start(&pki.listener_asking_clients("server"));
    let url = format!("https://localhost:{}", gate.admin);
    let (ca, cert, key) = (
        pki.show("ca.pem"),
        pki.show("operator.pem"),
        pki.show("operator.key"),
    );
    let show = ["show", "bucket/docs", "--url", &url];
    let trusts = ["--ca-file", &*ca];
    let shows = ["--cert-file", &*cert, "--key-file", &*key];
    let whole = [&show[..], &trusts, &shows].concat();
    assert!(is_fine(&fences(&whole)).contains("34"));
    let config = gate.folder.path().join("fencegate.yaml").display().to_string();
    let by_config = [&["show", "bucket/docs", "-c", &config], &trusts[..], &shows].concat();
    assert!(is_fine(&fences(&by_config)).contains("34"));
    // Where the address is not the certificate's name.
    pki.issue("server", &["gate.internal"]);
    wait_until(|| !fences(&whole).status.success());
    let named = [&whole[..], &["--server-name", "gate.internal"]].concat();
    assert!(is_fine(&fences(&named)).contains("34"));
    failed(&fences(&whole), 1, "no TLS with localhost");

    let foreign = foreign.show("ca.pem");
    let astray = ["--ca-file", &foreign, "--server-name", "gate.internal"];
    failed(
        &fences(&[&show[..], &astray, &shows].concat()),
        1,
        "no TLS with localhost",
    );
    let without = fences(&[&show[..], &trusts, &["--server-name", "gate.internal"]].concat());
    // Mostly by the alert itself; a reset can come before it.
    failed(&without, 1, "the connection to localhost");

    failed(
        &fences(&[&show[..], &trusts, &shows[..2]].concat()),
        2,
        "needs --key-file",
    );
    failed(
        &fences(&[&show[..], &["--ca-file", "/none"]].concat()),
        2,
        "--ca-file: ",
    );
    let plain = ["list", "--admin", &url["https://".len()..]];
    failed(
        &fences(&[&plain[..], &trusts].concat()),
        2,
        "write the address as https://",
    );
    failed(&fences(&plain), 1, "broke");
}

#[test]
fn a_client_that_never_shakes_hands_does_not_hold_up_the_stop() {
    let pki = Pki::new();
    let (_stub, mut gate) = start(&pki.listener("server"));
    let _silent = TcpStream::connect(("127.0.0.1", gate.admin)).unwrap();
    assert_eq!(curl(&gate, &pki, "localhost", "/readyz", &[]).0, "200 1.1");
    assert_eq!(gate.stop(), Some(0));
}

/// Waits until it is so, looking again and again.
#[track_caller]
fn wait_until(what: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < end, "it never happened");
        std::thread::sleep(Duration::from_millis(50));
    }
}
