//! The lines of `docs/clients.md`, run as they stand there: a good token is let through, and a stale one refused.

mod backends;
mod gate;

use std::fs;
use std::path::Path;

use backends::{ACCESS_KEY, Apache, S3, SECRET_KEY, Said, program, python, run};
use gate::{Gate, Setup, ask};
use tempfile::TempDir;

/// The rule that the document speaks of first.
const RULES: &str = r#"
      - name: objects
        match: { path: "/{bucket}/{*key}" }
        resource: "bucket/{bucket}"
        token: { header: Fencing-Token }
"#;

/// The token of a client that can set nothing but its User-Agent, as the document writes it.
const BY_USER_AGENT: &str = r"token: { header: User-Agent, pattern: 'app/fencing-token\.(\d+)' }";

struct Site {
    apache: Apache,
    s3: S3,
    before_s3: Gate,
    before_dav: Gate,
    by_user_agent: Gate,
    folder: TempDir,
}

impl Site {
    fn start() -> Site {
        let (apache, s3, folder) = (Apache::start(), S3::start(), tempfile::tempdir().unwrap());
        fs::write(folder.path().join("report"), "the report").unwrap();
        let user_agent = RULES.replace("token: { header: Fencing-Token }", BY_USER_AGENT);
        Site {
            before_s3: Setup::rules(RULES).listener("errors: s3").start(s3.port),
            by_user_agent: Setup::rules(&user_agent).listener("errors: s3").start(s3.port),
            before_dav: Setup::rules(RULES).start(apache.port),
            apache,
            s3,
            folder,
        }
    }

    fn run(&self, language: &str, text: &str) -> Said {
        let text = text
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.before_s3.port))
            .replace("127.0.0.1:8081", &format!("127.0.0.1:{}", self.before_dav.port))
            .replace(
                "127.0.0.1:8082",
                &format!("127.0.0.1:{}", self.by_user_agent.port),
            );
        let interpreter = match language {
            "sh" => "/bin/sh".into(),
            _ => python(),
        };
        let mut command = program(&interpreter, self.folder.path());
        command.args(["-c", &text]).envs([
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ]);
        run(&mut command)
    }

    /// What stands on the two stores.
    fn reports(&self) -> [Option<String>; 2] {
        [
            self.s3.content("report"),
            fs::read_to_string(self.apache.file("/orders/report")).ok(),
        ]
    }

    fn gates(&self) -> [&Gate; 3] {
        [&self.before_s3, &self.before_dav, &self.by_user_agent]
    }

    /// Requests of all gates that were decided so.
    fn decided(&self, decision: &str) -> f64 {
        let decision = format!("decision=\"{decision}\"");
        self.gates()
            .map(|gate| gate.metric("fencegate_requests_total", &["rule=\"objects\"", &decision]))
            .iter()
            .sum()
    }
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients.md");
    fs::read_to_string(path).unwrap()
}

/// All blocks of the document in a language that can be run.
fn blocks() -> Vec<(String, String)> {
    let text = document();
    let fenced = text.split("\n```").skip(1).step_by(2);
    let parts = fenced.map(|block| block.split_once('\n').unwrap());
    parts
        .map(|(language, block)| (language.to_owned(), block.to_owned()))
        .filter(|(language, _)| ["sh", "python"].contains(&language.as_str()))
        .collect()
}

#[test]
fn each_line_of_the_document_is_let_through_with_a_good_token_and_refused_with_a_stale_one() {
    let blocks = blocks();
    assert_eq!(blocks.len(), 8);
    assert!(document().contains(BY_USER_AGENT));
    for (language, block) in blocks {
        assert!(block.contains("34"), "{block}");
        let site = Site::start();
        site.run(&language, &block).is_fine();
        assert!(
            site.reports().contains(&Some("the report".into())),
            "nothing was written by {block}"
        );
        assert_eq!(site.decided("missing"), 0.0, "a request without a token: {block}");
        for gate in site.gates() {
            // A read raises as well; what the store says to it does not matter.
            let read = ask("GET", "/orders/other").token(34);
            gate.send(read.field("User-Agent", "app/fencing-token.34"));
        }
        let reports = site.reports();
        fs::write(site.folder.path().join("report"), "a late report").unwrap();
        site.run(&language, &block.replace("34", "33")).failed();
        assert!(site.decided("stale") > 0.0, "{block}");
        assert_eq!(site.reports(), reports, "{block}");
    }
}

#[test]
fn the_readme_leads_to_the_document() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    assert!(fs::read_to_string(readme).unwrap().contains("(docs/clients.md)"));
}
