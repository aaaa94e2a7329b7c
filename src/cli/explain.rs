//! `fencegate explain`: what the gate would make of a request, in plain words; one file a protocol. It asks what
//! judges real ones, and knows no marks, so that a comparison is described and not decided.

mod http;
mod redis;
mod tcp;

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{Config, Listener};

/// The arguments of `fencegate explain`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The configuration.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The request: for HTTP its method and its URL, or its path alone; for Redis the words of a command; for a listener of
    /// raw TCP nothing.
    #[arg(value_name = "METHOD URL", allow_negative_numbers = true)]
    words: Vec<String>,
    /// The resource that a session of raw TCP names.
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// The token that it presents, or that a Redis client's connection does.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// A header field of the request.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The client's address, for rules with allow.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    from: IpAddr,
    /// The listener that takes the request; else the one at the URL's address, or the first.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
}

/// Explains one request.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let (config, _) = match super::load(&arguments.config) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    match explain(&config, arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("fencegate: {message}");
            ExitCode::from(super::WRONG)
        }
    }
}

fn explain(config: &Config, arguments: &Arguments) -> Result<String, String> {
    let listener = match (&arguments.listener, &config.listeners[..]) {
        (Some(name), _) => Some(named(config, name)?),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    match listener {
        None | Some(Listener::Http(_)) => http::explain(config, arguments),
        Some(Listener::Redis(listener)) => redis::explain(listener, arguments),
        Some(Listener::Tcp(listener)) => tcp::explain(listener, arguments),
    }
}

fn named<'c>(config: &'c Config, name: &str) -> Result<&'c Listener, String> {
    let found = config.listeners.iter().find(|l| **l.name() == *name);
    found.ok_or_else(|| format!("no listener is named {name:?}; there are {}", names(config)))
}

fn names(config: &Config) -> String {
    let names: Vec<&str> = config.listeners.iter().map(|l| &**l.name()).collect();
    names.join(", ")
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, what: &str) {
        let _ = writeln!(self.0, "{label:<10}{what}");
    }
}
