//! `fencegate demo` as a user runs it: what it claims, how it ends, and that it leaves nothing behind.
#![cfg(feature = "demo")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A run of the demo, whose processes are known by its temporary folder, which all of them inherit.
struct Run {
    folder: TempDir,
    child: Child,
}

impl Run {
    fn start(arguments: &[&str]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_fencegate"))
            .arg("demo")
            .args(arguments)
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Run { folder, child }
    }

    /// Runs it to its end. Reads to the end of both outputs, so that the workers have ended too.
    fn finish(arguments: &[&str]) -> (Output, TempDir) {
        let run = Run::start(arguments);
        (run.child.wait_with_output().unwrap(), run.folder)
    }

    fn stdout(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.child.stdout.take().unwrap())
    }

    fn signal(&self, signal: libc::c_int) {
        let id = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: no memory is involved, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// Waits for its end and for that of all who hold its standard error: the store and the workers.
    fn end(mut self) -> (ExitStatus, String, TempDir) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (status, said, self.folder)
    }
}

/// Reads lines until one contains `word`, and gives all of them.
fn read_until(stdout: &mut impl BufRead, word: &str) -> String {
    let mut text = String::new();
    while !text.lines().last().is_some_and(|line| line.contains(word)) {
        assert_ne!(stdout.read_line(&mut text).unwrap(), 0, "no {word:?} in:\n{text}");
    }
    text
}

fn files_left(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The command lines of the processes that have this folder as their temporary one.
fn processes_left(folder: &Path) -> Vec<String> {
    let mark = format!("TMPDIR={}", folder.display());
    let has_mark = |environment: &[u8]| {
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == mark.as_bytes())
    };
    let mut left = vec![];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        // Others' processes can't be read, and any may end while we look.
        if std::fs::read(entry.path().join("environ")).is_ok_and(|environment| has_mark(&environment)) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            left.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    left
}

fn assert_nothing_left(folder: &TempDir) {
    assert_eq!(processes_left(folder.path()), Vec::<String>::new());
    assert_eq!(files_left(folder.path()), Vec::<String>::new());
}

/// Standard output as one line, for sentences that are wrapped somewhere.
fn flat(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_success(output: &Output) {
    let (out, err) = (&output.stdout, &output.stderr);
    let text = format!(
        "{}\n{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    );
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(err.is_empty(), "{text}");
}

#[test]
fn without_the_gate_a_confirmed_booking_is_lost_in_both_ways() {
    let (output, folder) = Run::finish(&["--without-gate"]);
    assert_success(&output);
    let text = flat(&output);
    assert_eq!(text.matches("CORRUPT: B was told 200").count(), 2, "{text}");
    assert_eq!(
        text.matches("late write answered 200; balance 110: WRONG")
            .count(),
        2,
        "{text}"
    );
    assert!(
        text.contains("is stopped in the middle of its upload (SIGSTOP)"),
        "{text}"
    );
    assert_nothing_left(&folder);
}

#[test]
fn with_the_gate_the_same_late_writes_are_refused_and_nothing_is_lost() {
    let begin = Instant::now();
    let (output, folder) = Run::finish(&[]);
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_success(&output);
    let text = flat(&output);
    assert_eq!(
        text.matches("late write answered 200; balance 110: WRONG")
            .count(),
        2,
        "{text}"
    );
    assert_eq!(
        text.matches("late write answered 412; balance 40: right").count(),
        2,
        "{text}"
    );
    for claim in [
        "the gate answers 412, stale-token",
        "while A's upload is still open",
        "its upload was cut at",
        "holds both bookings; balance 40",
    ] {
        assert!(text.contains(claim), "{claim:?} is missing in: {text}");
    }
    assert_nothing_left(&folder);
}

#[test]
fn what_is_printed_into_a_pipe_is_plain_and_fits_80_columns() {
    let (output, _folder) = Run::finish(&["--without-gate"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().count() > 20);
    assert!(!text.contains('\x1b'));
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert_eq!(wide, Vec::<&str>::new());
}

#[test]
fn an_interrupted_demo_ends_its_stopped_worker_and_removes_its_files() {
    let mut run = Run::start(&["--without-gate"]);
    let mut stdout = run.stdout();
    read_until(&mut stdout, "is stopped");
    assert!(
        processes_left(run.folder.path()).len() >= 3,
        "the demo, the store and a worker"
    );
    run.signal(libc::SIGINT);
    let (status, said, folder) = run.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_nothing_left(&folder);
}

#[test]
fn a_killed_demo_takes_its_processes_with_it() {
    let mut run = Run::start(&["--without-gate"]);
    let mut stdout = run.stdout();
    read_until(&mut stdout, "is stopped");
    run.signal(libc::SIGKILL);
    let (_, _, folder) = run.end();
    assert_eq!(processes_left(folder.path()), Vec::<String>::new());
}

#[test]
fn a_demo_whose_reader_has_gone_still_comes_to_its_end() {
    let mut run = Run::start(&["--without-gate"]);
    drop(run.stdout());
    let (status, said, folder) = run.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_nothing_left(&folder);
}

#[test]
fn a_demo_that_cannot_start_says_why_and_fails() {
    let output = Command::new(env!("CARGO_BIN_EXE_fencegate"))
        .arg("demo")
        .env("TMPDIR", "/nowhere/at/all")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/nowhere/at/all/fencegate-demo-"), "{said}");
    assert!(said.contains("because: No such file or directory"), "{said}");
}

#[test]
fn a_kept_demo_serves_its_curl_lines_until_it_is_interrupted() {
    let mut run = Run::start(&["--keep"]);
    let mut stdout = run.stdout();
    let text = read_until(&mut stdout, "ends it all");
    let address = |name: &str| {
        let (_, rest) = text.split_once(&format!("{name}=http://")).unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let (gate, store) = (address("GATE"), address("STORE"));
    assert!(put(&gate, "Fencing-Token: 42\r\n", "new").starts_with("HTTP/1.1 200"));
    assert!(put(&gate, "Fencing-Token: 41\r\n", "old").starts_with("HTTP/1.1 412"));
    assert!(put(&gate, "", "any").starts_with("HTTP/1.1 428"));
    assert!(exchange(&store, "GET", "", "").ends_with("\r\n\r\nnew"));
    run.signal(libc::SIGINT);
    let (status, said, folder) = run.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_nothing_left(&folder);
}

fn put(address: &str, fields: &str, body: &str) -> String {
    exchange(
        address,
        "PUT",
        &format!("{fields}Content-Length: {}\r\n", body.len()),
        body,
    )
}

fn exchange(address: &str, method: &str, fields: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head =
        format!("{method} /try-it/note HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\r\n");
    write!(stream, "{head}{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
