//! Unmodified S3 clients through the gate to a real store that checks signatures: what they see is what they see
//! without it, and a stale one is refused.

mod backends;
mod gate;

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use backends::{ACCESS_KEY, S3, SECRET_KEY, Said, program, python, run};
use gate::{Conn, Gate, PATIENCE, RawBackend, Setup, read_request};
use tempfile::TempDir;

/// A bucket is a resource, and so is all that is done to the bucket itself (a list of keys to delete).
const BUCKET: &str = r#"
      - name: objects
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
      - name: buckets
        match: { path: "/{bucket}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;

fn start() -> (S3, Gate, TempDir) {
    let store = S3::start();
    let gate = Setup::rules(BUCKET).listener("errors: s3").start(store.port);
    (store, gate, tempfile::tempdir().unwrap())
}

// ---- boto3

fn boto3(script: &str, folder: &Path, port: u16, words: &[&str]) -> Said {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(script);
    let mut command = program(&python(), folder);
    command.arg(script).arg(format!("http://127.0.0.1:{port}"));
    run(command.args(words))
}

#[test]
fn boto3_sees_the_same_through_the_gate_whether_its_token_is_signed_or_not() {
    for hook in ["before-sign", "before-send"] {
        let (direct, (behind, gate, folder)) = (S3::start(), start());
        let story = |port| {
            boto3("boto3_session.py", folder.path(), port, &["34", hook])
                .is_fine()
                .out
                .clone()
        };
        let (without, with) = (story(direct.port), story(gate.port));
        assert!(without.contains("\"complete\""), "{without}");
        for (without, with) in without.lines().zip(with.lines()) {
            assert_eq!(without, with, "{}", gate.log());
        }
        assert_eq!(without, with);
        assert_eq!(
            fs::read(direct.file("parts")).unwrap(),
            fs::read(behind.file("parts")).unwrap()
        );
        assert_eq!(gate.metric("fencegate_fences", &[]), 1.0);
    }
}
/// That signed requests pass proves nothing if the store takes whatever comes: curl's own request, kept and sent
/// again by hand, is taken as it was, and refused with another Host, another path or another of its signed fields.
#[test]
fn the_store_refuses_what_a_proxy_could_have_changed() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let keeper = RawBackend::start(move |_, mut reader, mut writer| {
        let (request, _) = read_request(&mut reader).unwrap().unwrap();
        tell.lock().unwrap().send(request).unwrap();
        writer
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
    });
    let (store, gate, folder) = start();
    let url = format!("http://127.0.0.1:{}/orders/a?x=1", keeper.port);
    fs::write(folder.path().join("file"), "v").unwrap();
    let fields = ["Host: s3.test:9000", "x-amz-meta-a: 1", "Fencing-Token: 34"];
    let fields = fields.iter().flat_map(|field| ["-H", field]).collect::<Vec<_>>();
    curl(&folder, &[&fields[..], &["-T", "file", &url]].concat()).is_fine();
    let kept = told.recv_timeout(PATIENCE).unwrap().lines.join("\r\n") + "\r\n\r\nv";
    let send = |port: u16, raw: &str| {
        let mut conn = Conn::open(port);
        conn.send(raw).reply()
    };
    for port in [store.port, gate.port] {
        assert_eq!(send(port, &kept).status, 200, "{kept}");
        for (is, other) in [
            ("s3.test:9000", "s3.test"),
            ("/orders/a?x=1", "/orders/a?x=2"),
            ("/orders/a?", "/orders/%62?"),
            ("x-amz-meta-a: 1", "x-amz-meta-a: 2"),
        ] {
            let changed = kept.replace(is, other);
            assert!(changed != kept && send(port, &changed).status == 403, "{changed}");
        }
    }
}

#[test]
fn a_stale_boto3_is_refused_at_once_whatever_it_was_about_to_do() {
    let (store, gate, folder) = start();
    let said = boto3("boto3_stale.py", folder.path(), gate.port, &[]);
    let calls: Vec<serde_json::Value> = said
        .is_fine()
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let stale = |call: &&serde_json::Value| call[0].as_str().unwrap().starts_with("stale");
    assert_eq!(calls.iter().filter(stale).count(), 10, "{calls:?}");
    for call in &calls {
        let (status, code) = match stale(&call) {
            true => (412, "PreconditionFailed".into()),
            false => (200, serde_json::Value::Null),
        };
        let [_, told_status, told_code, retries] = &call.as_array().unwrap()[..] else {
            panic!("{call}");
        };
        assert_eq!(
            (told_status, told_code, retries),
            (&status.into(), &code, &0.into()),
            "{call}"
        );
    }
    assert_eq!(
        decided(&gate, "stale"),
        9.0,
        "each call was sent once: {}",
        gate.log()
    );
    assert_eq!(store.content("a").as_deref(), Some("new again"));
    assert!(!store.file("b").exists() && !store.file("parts").exists());
}

// ---- curl, rclone, s3cmd

/// Runs curl with a signature; what it says is the status.
fn curl(folder: &TempDir, words: &[&str]) -> Said {
    let mut command = program("/usr/bin/curl", folder.path());
    command.args(["-s", "-o", "answer", "-w", "%{http_code}"]);
    command.args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user"]);
    command.arg(format!("{ACCESS_KEY}:{SECRET_KEY}"));
    command.args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
    run(command.args(words))
}

/// Runs rclone; `:s3:` is what listens at `port`.
fn rclone(folder: &TempDir, port: u16, words: &[&str]) -> Said {
    let mut command = program("/usr/bin/rclone", folder.path());
    command.args([
        "--config",
        "/dev/null",
        "--s3-provider",
        "Other",
        "--s3-region",
        "us-east-1",
    ]);
    command.args([
        "--s3-access-key-id",
        ACCESS_KEY,
        "--s3-secret-access-key",
        SECRET_KEY,
    ]);
    command.args([
        "--s3-no-check-bucket",
        "--s3-upload-cutoff",
        "5Mi",
        "--retries-sleep",
        "0",
    ]);
    command.arg(format!("--s3-endpoint=http://127.0.0.1:{port}"));
    run(command.args(words))
}

/// Runs s3cmd against what listens at `port`.
fn s3cmd(folder: &TempDir, port: u16, words: &[&str]) -> Said {
    let host = format!("127.0.0.1:{port}");
    let mut command = program("/usr/bin/s3cmd", folder.path());
    command.args(["-c", "/dev/null", "--no-ssl", "--region", "us-east-1"]);
    command.args(["--host", &host, "--host-bucket", &host]);
    command.args(["--access_key", ACCESS_KEY, "--secret_key", SECRET_KEY]);
    run(command.args(words))
}

/// How many requests for objects were decided so.
fn decided(gate: &Gate, decision: &str) -> f64 {
    let decision = format!("decision=\"{decision}\"");
    gate.metric("fencegate_requests_total", &["rule=\"objects\"", &decision])
}

const HOLDER: &str = "--header=Fencing-Token: 34";

#[test]
fn rclone_sees_the_same_through_the_gate() {
    let (direct, (behind, gate, folder)) = (S3::start(), start());
    fs::write(folder.path().join("small"), "text").unwrap();
    fs::write(folder.path().join("big"), vec![b'x'; 6 * 1024 * 1024]).unwrap();
    let told = |store: &S3, port| {
        let rclone = |words: &[&str]| {
            let said = rclone(&folder, port, &[&[HOLDER], words].concat());
            said.is_fine().out.clone()
        };
        let mut told = String::new();
        for words in [
            &["copyto", "small", ":s3:orders/a b+ü"][..],
            &["copyto", "big", ":s3:orders/big"],
            &["copyto", ":s3:orders/big", ":s3:orders/copy"],
            &["moveto", ":s3:orders/a b+ü", ":s3:orders/moved"],
            &["deletefile", ":s3:orders/copy"],
            &["cat", ":s3:orders/moved"],
            &["lsf", "--format", "psh", ":s3:orders"],
        ] {
            told += &rclone(words);
        }
        assert_eq!(fs::read(store.file("big")).unwrap().len(), 6 * 1024 * 1024);
        told
    };
    let without = told(&direct, direct.port);
    assert!(without.contains("big;6291456;"), "{without}");
    assert_eq!(without, told(&behind, gate.port));
}

#[test]
fn s3cmd_sees_the_same_through_the_gate_where_it_sends_its_token() {
    let (direct, (behind, gate, folder)) = (S3::start(), start());
    fs::write(folder.path().join("small"), "text").unwrap();
    fs::write(folder.path().join("big"), vec![b'x'; 6 * 1024 * 1024]).unwrap();
    let told = |port| {
        let mut told = String::new();
        for words in [
            &["put", "small", "s3://orders/a b+"][..],
            &[
                "put",
                "--no-preserve",
                "--disable-multipart",
                "big",
                "s3://orders/big",
            ],
            &["cp", "s3://orders/a b+", "s3://orders/copy"],
            &["get", "--force", "s3://orders/copy", "got"],
            &["info", "s3://orders/big"],
            &["la"],
        ] {
            let with_token = [&["--no-progress", "--add-header=Fencing-Token: 34"], words].concat();
            told += &s3cmd(&folder, port, &with_token).is_fine().out;
        }
        // Without times: how long it took, when the object was written.
        told.lines()
            .filter(|line| !line.contains(" seconds, ") && !line.contains("Last mod"))
            .map(|line| {
                line.split_once("   ")
                    .map_or(line, |(_, rest)| rest)
                    .trim()
                    .to_owned()
            })
            .collect::<Vec<_>>()
    };
    let without = told(direct.port);
    assert!(without.len() > 5, "{without:?}");
    assert_eq!(without, told(gate.port));
    assert_eq!(fs::read_to_string(folder.path().join("got")).unwrap(), "text");
    // It leaves the field out here: all of that is refused.
    for words in [
        &["del", "s3://orders/copy"][..],
        &["mv", "s3://orders/copy", "s3://orders/moved"],
        &["put", "--multipart-chunk-size-mb=5", "big", "s3://orders/parts"],
    ] {
        let with_token = [&["--no-progress", "--add-header=Fencing-Token: 34"], words].concat();
        let said = s3cmd(&folder, gate.port, &with_token);
        assert!(said.failed().err.contains("428 (AccessDenied)"), "{said:?}");
    }
    assert_eq!(behind.content("copy").as_deref(), Some("text"));
    assert_eq!(behind.content("parts"), None);
}

// ---- how often a refused write comes

/// A gate that waits out a crash: equal tokens go on, and a new holder gets 503.
fn after_a_crash() -> (S3, Gate, TempDir) {
    let store = S3::start();
    let rule = BUCKET.replace(
        "    resource",
        "    reads: ignore\n        drain_timeout: 50ms\n        resource",
    );
    let setup = Setup::rules(&rule).settle_after("600s").listener("errors: s3");
    // A start that finds its port taken ends at once, and is tried again.
    let mut gate = setup.top("shutdown_timeout: 1s").start(store.port);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "v").unwrap();
    let url = format!("http://127.0.0.1:{}/orders/a", gate.port);
    assert_eq!(
        curl(&folder, &["-H", "Fencing-Token: 34", "-T", "file", &url]).out,
        "200"
    );
    gate.kill();
    gate.start();
    (store, gate, folder)
}

/// How often a write came that was refused for its stale token, for having none, and with a 503 for a new one. `send`
/// sends one with this token, or without.
fn counts(gate: &Gate, send: impl Fn(Option<&str>)) -> [f64; 3] {
    let cases = [
        (Some("33"), "stale"),
        (None, "missing"),
        (Some("35"), "unavailable"),
    ];
    cases.map(|(token, decision)| {
        send(token);
        decided(gate, decision)
    })
}

#[test]
fn curl_tries_a_503_again_and_nothing_else() {
    let (_store, gate, folder) = after_a_crash();
    let url = format!("http://127.0.0.1:{}/orders/a", gate.port);
    let sent = counts(&gate, |token| {
        let field = token.map(|token| format!("Fencing-Token: {token}"));
        let mut words = vec!["--retry", "1", "-T", "file", &url];
        words.extend(field.iter().flat_map(|field| ["-H", field]));
        curl(&folder, &words);
    });
    assert_eq!(sent, [1.0, 1.0, 2.0], "{}", gate.log());
}

#[test]
fn boto3_reads_why_and_tries_a_503_four_times_more_and_nothing_else() {
    let (_store, gate, folder) = after_a_crash();
    let codes = RefCell::new(Vec::new());
    let sent = counts(&gate, |token| {
        let said = boto3("boto3_put.py", folder.path(), gate.port, token.as_slice());
        codes.borrow_mut().push(said.failed().out.trim().to_owned());
    });
    assert_eq!(
        codes.into_inner(),
        ["PreconditionFailed", "AccessDenied", "ServiceUnavailable"]
    );
    assert_eq!(sent, [1.0, 1.0, 5.0], "{}", gate.log());
}

#[test]
fn rclone_tries_everything_three_times_and_a_503_some_more() {
    let (_store, gate, folder) = after_a_crash();
    let sent = counts(&gate, |token| {
        let field = token.map(|token| format!("--header=Fencing-Token: {token}"));
        let mut words = vec!["--low-level-retries=2", "copyto", "file", ":s3:orders/b"];
        words.extend(field.as_deref());
        rclone(&folder, gate.port, &words).failed();
    });
    assert_eq!(sent, [3.0, 3.0, 6.0], "{}", gate.log());
}
