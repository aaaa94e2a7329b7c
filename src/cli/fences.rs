//! `fencegate fences`: looks at the fences of a running gate and changes them, by its admin address. It opens no
//! store. Lowering is asked for twice, and so is what looks like a slip: a name never seen, a leap of the mark.

pub(super) mod client;
mod plan;
mod secure;
pub(super) mod table;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use self::client::{Client, Reply, encoded};
use self::plan::Plan;
use self::secure::Secure;
use self::table::plain;
use super::failed::{Failed, print};
use crate::config::{Admin, read_secret};

/// What is asked for, and where.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    asked: Asked,
    /// Print the answer as it came.
    #[arg(long, global = true)]
    json: bool,
}

/// Which admin address is asked, and how.
#[derive(clap::Args)]
pub(super) struct Asked {
    /// The admin address of the running gate, as HOST:PORT or https://HOST:PORT [default: 127.0.0.1:9901].
    #[arg(
        long,
        visible_alias = "url",
        global = true,
        value_name = "ADDRESS",
        conflicts_with = "config"
    )]
    admin: Option<String>,
    /// Takes the admin address from this configuration.
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The file with the admin address's token; else the one that the configuration names.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    secure: Secure,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List fences in the order of their names.
    List {
        /// Only those whose names start so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Only those that come after this name.
        #[arg(long)]
        after: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
        /// All of them, page by page.
        #[arg(long, conflicts_with = "limit")]
        all: bool,
    },
    /// Show one fence.
    Show {
        /// The resource.
        name: String,
    },
    /// Raise a fence: older holders are shut out once this returns.
    Raise {
        #[command(flatten)]
        target: Target,
    },
    /// Set a fence, also down: tokens from the new mark on are let in again.
    Reset {
        #[command(flatten)]
        target: Target,
        /// Why; it stands in the audit trail.
        #[arg(long)]
        reason: String,
    },
    /// List the latest resets, the newest first.
    Audit {
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
        limit: u64,
    },
}

#[derive(clap::Args)]
struct Target {
    /// The resource.
    name: String,
    /// The token, in the resource's format.
    token: String,
    /// How the token is written, where no rule or earlier token tells: integer, hex or pair.
    #[arg(long)]
    format: Option<String>,
    /// How long to wait for older writes; what was asked for goes on after that.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: String,
    /// Make a new fence where no token was ever seen for this name; without it that is refused.
    #[arg(long)]
    new: bool,
    /// Do it without asking. A reset asks always, a raise where it leaps by more than 1,000,000.
    #[arg(long)]
    yes: bool,
}

/// Does what was asked for.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let client = match arguments.asked.client() {
        Ok(client) => client,
        Err(code) => return code,
    };
    let session = Session {
        client,
        json: arguments.json,
    };
    match session.execute(&arguments.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.tell(),
    }
}

impl Asked {
    /// A client of it, or what was said of why there is none.
    pub(super) fn client(&self) -> Result<Client, ExitCode> {
        let (address, configured) = match (&self.admin, &self.config) {
            (Some(address), _) => (address.clone(), None),
            (None, Some(path)) => {
                let (config, _warnings) = super::load(path)?;
                (reachable(&config.admin), config.admin.token)
            }
            (None, None) => (ADMIN.into(), None),
        };
        let token = match self.token_file.as_deref().map(read_secret) {
            Some(Ok(token)) => Some(token),
            Some(Err(wrong)) => return Err(Failed::wrong(format!("--token-file: {wrong}")).tell()),
            None => configured,
        };
        Client::new(&address, &self.secure, token).map_err(|failed| failed.tell())
    }
}

/// Where a client on this machine finds the admin address, also one that listens everywhere.
fn reachable(admin: &Admin) -> String {
    let bind = admin.bind;
    let address: SocketAddr = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, bind.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, bind.port()).into(),
        IpAddr::V4(_) | IpAddr::V6(_) => bind,
    };
    match admin.tls {
        Some(_) => format!("https://{address}"),
        None => address.to_string(),
    }
}

struct Session {
    client: Client,
    json: bool,
}

impl Session {
    fn execute(&self, verb: &Verb) -> Result<(), Failed> {
        match verb {
            Verb::List {
                prefix,
                after,
                limit,
                all,
            } => self.list(prefix, after.clone(), if *all { 1000 } else { *limit }, *all),
            Verb::Show { name } => self.show(name),
            Verb::Raise { target } => self.raise(target),
            Verb::Reset { target, reason } => self.reset(target, reason),
            Verb::Audit { limit } => self.audit(*limit),
        }
    }

    fn list(&self, prefix: &str, mut after: Option<String>, limit: u64, all: bool) -> Result<(), Failed> {
        let mut rows = Vec::new();
        loop {
            let after_part = after
                .as_deref()
                .map_or_else(String::new, |name| format!("&after={}", encoded(name)));
            let path = format!("{FENCES}?prefix={}&limit={limit}{after_part}", encoded(prefix));
            let page = self.get(&path)?;
            if self.json {
                print(&page.text)?;
            }
            rows.extend(fences_of(&page)?.iter().map(table::row));
            after = page.value["next"].as_str().map(String::from);
            if after.is_none() || !all {
                break;
            }
        }
        if !self.json {
            print(&table::fences(rows))?;
        }
        if let Some(after) = after {
            eprintln!("there are more after {}: list them with --all", plain(&after));
        }
        Ok(())
    }

    fn show(&self, name: &str) -> Result<(), Failed> {
        let (reply, fence) = self.look(name)?;
        match fence {
            Some(_) if self.json => print(&reply.text),
            Some(fence) => print(&table::fence(&fence)),
            None => Err(Failed::now(format!("no token was seen for {}", plain(name)))),
        }
    }

    fn raise(&self, target: &Target) -> Result<(), Failed> {
        let (_, fence) = self.look(&target.name)?;
        let plan = target.plan(fence.as_ref());
        plan.check_known(target.new)?;
        let step = plan.step()?;
        eprintln!("{}", plan.arrow());
        if step > STEP_MAX {
            eprintln!(
                "That is {step} up: every token below it is refused from then on, and only a reset lowers."
            );
            target.confirm()?;
        }
        let reply = self.order(&format!("{FENCES}/raise"), target.order(), &target.timeout)?;
        if self.json {
            return print(&reply.text);
        }
        print(&table::fence(&reply.value))
    }

    fn reset(&self, target: &Target, reason: &str) -> Result<(), Failed> {
        let (_, fence) = self.look(&target.name)?;
        let plan = target.plan(fence.as_ref());
        plan.check_known(target.new)?;
        if !target.yes {
            eprintln!("{}", plan.reset());
            target.confirm()?;
        }
        let mut order = target.order();
        order["reason"] = reason.into();
        let reply = self.order(&format!("{FENCES}/reset"), order, &target.timeout)?;
        if self.json {
            return print(&reply.text);
        }
        let before = reply.value["before"].as_str().unwrap_or("(none)");
        let after = reply.value["after"].as_str().unwrap_or("?");
        let format = reply.value["fence"]["format"].as_str().unwrap_or("?");
        print(&format!(
            "{}: {before} -> {after} ({format})",
            plain(&target.name)
        ))
    }

    fn audit(&self, limit: u64) -> Result<(), Failed> {
        let reply = self.get(&format!("/api/v1/audit?limit={limit}"))?;
        if self.json {
            return print(&reply.text);
        }
        let lines = reply.value["audit"].as_array().ok_or_else(unclear)?;
        print(&table::audit(lines))
    }

    fn look(&self, name: &str) -> Result<(Reply, Option<Value>), Failed> {
        let reply = self.get(&format!("{FENCES}?resource={}", encoded(name)))?;
        let fence = fences_of(&reply)?.first().cloned();
        Ok((reply, fence))
    }

    fn get(&self, path: &str) -> Result<Reply, Failed> {
        self.client.call("GET", path, None, READ_PATIENCE)?.fine()
    }

    fn order(&self, path: &str, order: Value, timeout: &str) -> Result<Reply, Failed> {
        let patience = crate::config::some_duration(timeout)
            .map_err(|wrong| Failed::wrong(format!("--timeout: {wrong}")))?;
        self.client
            .call("POST", path, Some(order), patience + READ_PATIENCE)?
            .fine()
    }
}

impl Target {
    fn plan<'a>(&'a self, fence: Option<&'a Value>) -> Plan<'a> {
        Plan {
            name: &self.name,
            token: &self.token,
            format: self.format.as_deref(),
            fence,
        }
    }

    /// Goes on only where `--yes` or a person at the terminal says so.
    fn confirm(&self) -> Result<(), Failed> {
        if self.yes || is_confirmed()? {
            return Ok(());
        }
        Err(Failed::wrong("nothing was changed; say --yes to do it"))
    }

    fn order(&self) -> Value {
        let mut order = json!({ "resource": self.name, "token": self.token, "timeout": self.timeout });
        if let Some(format) = &self.format {
            order["format"] = format.as_str().into();
        }
        order
    }
}

/// Whether a person at the terminal says so. Without a terminal nobody does.
fn is_confirmed() -> Result<bool, Failed> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Ok(false);
    }
    eprint!("Do it? Type yes: ");
    let mut line = String::new();
    input
        .read_line(&mut line)
        .map_err(|error| Failed::now(format!("the terminal can't be read: {error}")))?;
    Ok(line.trim() == "yes")
}

fn fences_of(page: &Reply) -> Result<&Vec<Value>, Failed> {
    page.value["fences"].as_array().ok_or_else(unclear)
}

fn unclear() -> Failed {
    Failed::now("the answer is not one of fencegate's: is this its admin address?")
}

const ADMIN: &str = "127.0.0.1:9901";
const FENCES: &str = "/api/v1/fences";
/// A raise by more is asked for twice: it may be a token in another format, or another resource's.
const STEP_MAX: u64 = 1_000_000;
/// How long an answer may take that waits for nothing.
const READ_PATIENCE: Duration = Duration::from_secs(15);
