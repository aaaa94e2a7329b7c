//! Unmodified WebDAV clients through the gate: the litmus suite, rclone and cadaver.
//!
//! litmus and cadaver can't send a token, so they show that nothing else changes; rclone sends one.

mod backends;
mod gate;

use std::fs;
use std::process::Stdio;

use backends::{Apache, Nginx, Said, program, python, run};
use gate::{Gate, RULE, Setup, ask};
use tempfile::TempDir;

// ---- litmus

/// A rule that covers everything, and asks for no token.
const OPEN: &str = r#"
      - name: all
        match: { path: "/{*path}" }
        resource: "all"
        token: { header: Fencing-Token }
        missing: pass
"#;

/// What the suite found: each test as `group NUMBER. NAME WORD`, and its warnings.
#[derive(Debug)]
struct Findings {
    tests: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn count(&self, word: &str) -> usize {
        self.tests.iter().filter(|test| test.ends_with(word)).count()
    }
}

fn litmus(port: u16) -> Findings {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{port}/");
    let said = run(program("/usr/bin/litmus", folder.path()).args(["-k", &url]));
    assert!(
        said.out.contains("summary for `http'"),
        "it did not finish: {said:?}"
    );
    read_findings(&said.out)
}

/// A test's line is written over itself (`CR`) with its word, or goes on in further lines after a warning.
fn read_findings(out: &str) -> Findings {
    let (mut tests, mut warnings) = (Vec::new(), Vec::new());
    let (mut group, mut name) = ("", "");
    for line in out.split(['\r', '\n']).map(str::trim) {
        if let Some(rest) = line.strip_prefix("-> running `") {
            group = rest.trim_end_matches("':");
        }
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            name = line.split("..").next().unwrap().trim();
        }
        if line.contains(" WARNING: ") {
            warnings.push(format!("{group} {name}"));
        }
        let of_test = line.starts_with(|first: char| first.is_ascii_digit() || first == '.');
        let words = ["pass", "FAIL", "SKIPPED"];
        let mut found = words
            .iter()
            .filter(|word| of_test && line.contains(&format!(" {word}")));
        if let Some(word) = found.next() {
            tests.push(format!("{group} {name} {word}"));
        }
    }
    Findings { tests, warnings }
}

#[test]
fn litmus_passes_whole_through_the_gate_to_apache() {
    let apache = Apache::start();
    let gate = Setup::rules(OPEN).start(apache.port);
    let direct = litmus(apache.port);
    let through = litmus(gate.port);
    assert_eq!(direct.tests, through.tests);
    assert_eq!((through.tests.len(), through.count("pass")), (104, 104));
    assert_eq!(direct.warnings, through.warnings);
}

#[test]
fn litmus_finds_the_same_through_the_gate_to_nginx() {
    let nginx = Nginx::start();
    let gate = Setup::rules(OPEN).start(nginx.port);
    let mut direct = litmus(nginx.port);
    let through = litmus(gate.port);
    assert!(direct.count("pass") > 40, "{direct:?}");
    assert_eq!(direct.tests, through.tests);
    // nginx deletes what a target with a fragment names; the gate refuses such a target.
    direct
        .warnings
        .retain(|warning| warning != "basic 9. delete_fragment");
    assert_eq!(direct.warnings, through.warnings);
}

#[test]
fn litmus_passes_whole_where_its_resource_is_fenced_and_observed() {
    let apache = Apache::start();
    let rule = OPEN.replace("missing: pass", "mode: observe");
    let gate = Setup::rules(&rule).start(apache.port);
    gate.send(ask("PUT", "/first").token(34).body("v"));
    let through = litmus(gate.port);
    assert_eq!((through.tests.len(), through.count("pass")), (104, 104));
}

// ---- rclone

/// A share that exists on the store, behind a gate.
fn share(rules: &str) -> (Apache, Gate, TempDir) {
    let apache = Apache::start();
    let gate = Setup::rules(rules).start(apache.port);
    (apache, gate, tempfile::tempdir().unwrap())
}

fn local(folder: &TempDir, name: &str, text: &str) {
    fs::write(folder.path().join(name), text).unwrap();
}

/// Runs rclone; `:webdav:` is the gate.
#[track_caller]
fn rclone(gate: &Gate, folder: &TempDir, header: &str, words: &[&str]) -> Said {
    let url = format!("http://127.0.0.1:{}", gate.port);
    let mut command = program("/usr/bin/rclone", folder.path());
    command.args(["--config", "/dev/null", "--webdav-url", &url]);
    run(command.args([header]).args(words))
}

const HOLDER: &str = "--header=Fencing-Token: 34";
const STALE: &str = "--header=Fencing-Token: 33";

#[test]
fn rclone_with_a_token_uploads_lists_moves_and_deletes() {
    let (apache, gate, folder) = share(RULE);
    local(&folder, "a", "text");
    local(&folder, "big", &"0123456789".repeat(300_000));
    let rclone = |words: &[&str]| rclone(&gate, &folder, HOLDER, words);
    rclone(&["copyto", "a", ":webdav:orders/a"]).is_fine();
    rclone(&["copyto", "big", ":webdav:orders/new/folder/big"]).is_fine();
    assert_eq!(
        fs::read(apache.file("/orders/new/folder/big")).unwrap().len(),
        3_000_000
    );
    assert_eq!(
        rclone(&["lsf", "-R", ":webdav:orders"]).is_fine().out,
        "a\nnew/\nnew/folder/\nnew/folder/big\n"
    );
    assert_eq!(rclone(&["cat", ":webdav:orders/a"]).is_fine().out, "text");
    rclone(&["moveto", ":webdav:orders/a", ":webdav:orders/b"]).is_fine();
    assert!(!apache.file("/orders/a").exists());
    assert_eq!(fs::read(apache.file("/orders/b")).unwrap(), b"text");
    rclone(&["deletefile", ":webdav:orders/b"]).is_fine();
    rclone(&["purge", ":webdav:orders/new"]).is_fine();
    assert_eq!(rclone(&["lsf", ":webdav:orders"]).is_fine().out, "");
}

#[test]
fn rclone_that_is_stale_learns_it_from_its_first_look() {
    let (apache, gate, folder) = share(RULE);
    local(&folder, "mine", "a new holder's");
    local(&folder, "late", "a stale holder's file");
    rclone(&gate, &folder, HOLDER, &["copyto", "mine", ":webdav:orders/a"]).is_fine();
    let late = rclone(&gate, &folder, STALE, &["copyto", "late", ":webdav:orders/a"]);
    assert!(late.failed().err.contains("stale-token"), "{late:?}");
    assert_eq!(fs::read(apache.file("/orders/a")).unwrap(), b"a new holder's");
}

/// It sends a DELETE after a PUT that was refused, each three times.
#[test]
fn a_stale_rclone_never_deletes_the_new_holders_file() {
    // Reads are left alone, so that it gets as far as its upload.
    let (apache, gate, folder) = share(&format!("{}        reads: ignore\n", RULE));
    local(&folder, "mine", "a new holder's");
    local(&folder, "late", "a stale holder's file");
    rclone(&gate, &folder, HOLDER, &["copyto", "mine", ":webdav:orders/a"]).is_fine();
    let decided = |decision: &str| {
        let decision = format!("decision=\"{decision}\"");
        gate.metric("fencegate_requests_total", &["rule=\"bucket\"", &decision])
    };
    for (header, stale, missing) in [
        // The DELETE has the token too, or it has none.
        (STALE, 6.0, 0.0),
        ("--header-upload=Fencing-Token: 33", 3.0, 3.0),
    ] {
        let before = (decided("stale"), decided("missing"));
        let words = ["--retries-sleep=0", "copyto", "late", ":webdav:orders/a"];
        rclone(&gate, &folder, header, &words).failed();
        assert_eq!(fs::read(apache.file("/orders/a")).unwrap(), b"a new holder's");
        let sent = (decided("stale") - before.0, decided("missing") - before.1);
        assert_eq!(sent, (stale, missing), "{}", gate.log());
    }
}

// ---- cadaver

/// Runs cadaver with these lines as its input.
#[track_caller]
fn cadaver(gate: &Gate, folder: &TempDir, lines: &str) -> Said {
    let url = format!("http://127.0.0.1:{}/orders/", gate.port);
    local(folder, "lines", lines);
    let lines = fs::File::open(folder.path().join("lines")).unwrap();
    let mut command = program("/usr/bin/cadaver", folder.path());
    run(command.arg(url).stdin(Stdio::from(lines)))
}

const SESSION: &str = "put mine a\nls\nlock a\nput mine a\nunlock a\nmove a b\ncopy b c\nmkcol d\nmove c d/c\n\
                       cat d/c\npropset b x y\ndelete b\nrmcol d\nquit\n";

#[test]
fn cadaver_works_where_no_token_is_asked_for_until_somebody_brings_one() {
    let (apache, gate, folder) = share(&format!("{}        missing: pass_until_fenced\n", RULE));
    local(&folder, "mine", "text");
    let said = cadaver(&gate, &folder, SESSION);
    assert!(!said.is_fine().out.contains("failed"), "{}", said.out);
    assert!(said.out.contains("text"), "{}", said.out);
    assert_eq!(
        fs::read_dir(apache.file("/orders")).unwrap().count(),
        1,
        "the properties alone"
    );
    gate.send(ask("PUT", "/orders/a").token(34).body("held"));
    let said = cadaver(&gate, &folder, "put mine a\ndelete a\ncat a\nquit\n");
    assert_eq!(
        said.out.matches("428 Precondition Required").count(),
        2,
        "{}",
        said.out
    );
    assert!(said.out.contains("held"), "{}", said.out);
}

// ---- clients that push without asking

/// It sends no Expect: it pushes the whole body, and reads the answer after it.
const PUSH: &str = "
import sys, requests
answer = requests.put(sys.argv[1], data=b'x' * int(sys.argv[2]), headers={'Fencing-Token': '33'})
print(answer.status_code, answer.headers['Fencing-Token-Highest'], answer.json()['reason'])
";

#[test]
fn clients_that_push_a_large_body_flat_out_read_why_it_was_refused() {
    let (_apache, gate, folder) = share(RULE);
    gate.send(ask("PUT", "/orders/a").token(34).body("held"));
    let url = format!("http://127.0.0.1:{}/orders/a", gate.port);
    for size in [100_000, 10_000_000, 50_000_000] {
        let mut requests = program(&python(), folder.path());
        let said = run(requests.args(["-c", PUSH, &url, &size.to_string()]));
        assert_eq!(said.is_fine().out, "412 34 stale-token\n", "{size} bytes");
        fs::write(folder.path().join("large"), vec![b'x'; size]).unwrap();
        let mut curl = program("/usr/bin/curl", folder.path());
        curl.args(["-s", "-o", "answer", "-w", "%{http_code}", "-T", "large", &url]);
        let said = run(curl.args(["-H", "Expect:", "-H", "Fencing-Token: 33"]));
        assert_eq!(said.is_fine().out, "412", "{size} bytes");
    }
}

// ---- locks of the store beside tokens

/// WebDAV's own lock token stands in `If`; it and the fencing token know nothing of each other.
#[test]
fn the_stores_locks_and_fencing_tokens_live_side_by_side() {
    let (apache, gate, _folder) = share(RULE);
    let put = |token: u64| ask("PUT", "/orders/a").token(token).body(format!("by {token}"));
    assert_eq!(gate.send(put(33)).status, 201);
    let lock = "<?xml version=\"1.0\"?><lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope>\
                <locktype><write/></locktype></lockinfo>";
    let locked = gate.send(ask("LOCK", "/orders/a").token(33).body(lock));
    assert_eq!(locked.status, 200, "{locked:?}");
    let name = locked.field("lock-token").unwrap().to_owned();
    let condition = format!("({name})");
    // The store's own word, whoever asks.
    let reply = gate.send(put(34));
    assert_eq!((reply.status, reply.reason()), (423, ""));
    // The old holder has the store's lock still, and is stale. A 412 could be taken for the store's word on `If`.
    gate.send(put(33).field("If", &condition)).is(403, "stale-token");
    assert_eq!(gate.send(put(34).field("If", &condition)).status, 204);
    let moved = |token: u64| {
        ask("MOVE", "/orders/a")
            .token(token)
            .field("Destination", "http://store.test/orders/b%20c")
            .field("If", format!("<http://store.test/orders/a> {condition}"))
    };
    gate.send(moved(33)).is(403, "stale-token");
    assert_eq!(gate.send(moved(34)).status, 201);
    assert_eq!(fs::read(apache.file("/orders/b c")).unwrap(), b"by 34");
    assert!(!apache.file("/orders/a").exists());
}
