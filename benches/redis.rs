//! What a command costs the Redis gate, beside haproxy in TCP mode: `cargo bench --bench redis`. Needs redis-server,
//! redis-benchmark and haproxy. Words behind `--` choose cases by a part of their names.
//!
//! Keys fall under a rule. redis-benchmark presents a token by its user's name; or none, where the rule lets that pass, on
//! keys that were fenced before and on keys that never were.

mod beside;

use std::process::{Command, Stdio};

use beside::{Process, Proxy, await_port, compare, free_port};

/// A pattern for the user's name: redis-benchmark can't name its connections.
const LISTENER: &str = r#"    protocol: redis
    rules:
      - { name: keys, match: { keys: "key:{id}" }, resource: "key/{id}", token: { connection: true, pattern: 'holder-(\d+)' }, missing: pass }
      - { name: bare, match: { keys: "bare:{id}" }, resource: "bare/{id}", token: { connection: true, pattern: 'holder-(\d+)' }, missing: pass }
"#;
const USER: &str = "holder-34";
const PASSWORD: &str = "secret";

fn main() {
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let port = free_port();
    let _server = server(port);
    let mut proxies = vec![Proxy::haproxy("haproxy", "", port)];
    proxies.extend(Proxy::fencegates(LISTENER, port));
    for proxy in &proxies {
        // Each key's first token is a raise: that is not what is measured.
        let warm = Load {
            who: Who::Token,
            command: "set",
            pipeline: 16,
            size: 3,
        };
        warm.run(proxy.port, 50_000);
    }
    for load in loads() {
        let case = load.name();
        if !chosen.is_empty() && !chosen.iter().any(|word| case.contains(word.as_str())) {
            continue;
        }
        let commands = if load.pipeline == 1 { 60_000 } else { 400_000 };
        compare(&case, "µs", &proxies, |proxy| {
            proxy.spends(|| load.run(proxy.port, commands)) * 1e6 / f64::from(commands)
        });
    }
}

/// One run of redis-benchmark.
struct Load {
    who: Who,
    command: &'static str,
    pipeline: u32,
    size: usize,
}

/// What connections present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// The token that is open.
    Token,
    /// None, on keys that were fenced before.
    None,
    /// None, on keys that never were.
    Bare,
}

fn loads() -> Vec<Load> {
    let mut loads = Vec::new();
    for who in [Who::Token, Who::None, Who::Bare] {
        for pipeline in [1, 16] {
            for size in [3, 1024] {
                for command in ["set", "get"] {
                    loads.push(Load {
                        who,
                        command,
                        pipeline,
                        size,
                    });
                }
            }
        }
    }
    loads
}

impl Load {
    fn name(&self) -> String {
        let Load {
            who,
            command,
            pipeline,
            size,
        } = self;
        format!("{who:?}-{command}-P{pipeline}-{size}B").to_lowercase()
    }

    fn run(&self, port: u16, commands: u32) {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.args(["-h", "127.0.0.1", "-c", "50", "-q", "-r", "1000"]);
        let numbers = [("-p", u32::from(port)), ("-n", commands), ("-P", self.pipeline)];
        for (option, number) in numbers {
            benchmark.args([option, &number.to_string()]);
        }
        if self.who == Who::Token {
            benchmark.args(["--user", USER, "-a", PASSWORD]);
        }
        let key = if self.who == Who::Bare {
            "bare:__rand_int__"
        } else {
            "key:__rand_int__"
        };
        benchmark.args([self.command, key]);
        if self.command == "set" {
            benchmark.arg("x".repeat(self.size));
        }
        let output = benchmark
            .stdin(Stdio::null())
            .output()
            .expect("redis-benchmark is installed");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let fine = output.status.success() && out.contains("requests per second") && !err.contains("rror");
        assert!(fine, "{out}{err}");
    }
}

fn server(port: u16) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let process = Process::start(&mut command);
    await_port(port);
    let user = [
        "ACL",
        "SETUSER",
        USER,
        "on",
        &format!(">{PASSWORD}"),
        "~*",
        "&*",
        "+@all",
    ];
    let made = Command::new("redis-cli")
        .args(["-p", &port.to_string()])
        .args(user)
        .output();
    assert!(made.expect("redis-cli is installed").stdout.starts_with(b"OK"));
    process
}
