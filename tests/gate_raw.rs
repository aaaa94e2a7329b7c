//! Requests that two readers could take for two things, row by row, as HTTP/1.1 and as HTTP/2: each is refused and
//! reaches nobody, or goes on as exactly what was judged. `gate_wire.rs` has the malformed framing of HTTP/1.1,
//! `gate_h2.rs` that of HTTP/2; here is what is left: targets, methods, hosts, fields, pipelines.

mod gate;

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use gate::frames::{Frames, Outcome, frame};
use gate::{Conn, Gate, RULE, RawBackend, Request, Setup, ask, frames, read_request};

const ONLY: &str = r#"
      - name: only
        match: { path: "/only/{x}", methods: [PUT] }
        resource: "only/{x}"
        token: { header: Fencing-Token }
"#;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A gate whose backend tells all that it gets.
fn start() -> (RawBackend, Receiver<(Request, Vec<u8>)>, Gate) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = RawBackend::start(move |_, mut reader, mut writer| {
        while let Ok(Some(request)) = read_request(&mut reader) {
            let _nobody_looks = tell.lock().unwrap().send(request);
            if writer.write_all(OK).is_err() {
                return;
            }
        }
    });
    let rules = format!("{ONLY}{}", RULE.trim_start_matches('\n'));
    let gate = Setup::rules(&rules)
        .listener("forwarded: false")
        .start(backend.port);
    (backend, told, gate)
}

const HOST: &str = "Host: store.test";
const TOKEN: &str = "Fencing-Token: 9";

/// What must become of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is refused with this status and reason, and the backend gets nothing.
    Refused(u16, &'static str),
    /// It reaches the backend with its line and its fields as they came.
    Same,
    /// It reaches the backend with this line (without the version), and its fields as they came.
    Line(&'static str),
    /// It reaches the backend with its line as it came, and without the fields of these names.
    Without(&'static [&'static str]),
}

use Fate::{Line, Refused, Same, Without};

/// What becomes of the same request in HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InH2 {
    /// The same.
    Also,
    /// That, or it is refused before it is judged: the h2 crate is stricter about some bytes.
    OrRefused,
    /// There is no such request in HTTP/2, or another row has it.
    No,
}

use InH2::{Also, No, OrRefused};

const BAD: Fate = Refused(400, "bad-request");
const AMBIGUOUS: Fate = Refused(400, "ambiguous-path");
const OVERRIDE: Fate = Refused(400, "method-override");
const UNMATCHED: Fate = Refused(403, "unmatched-write");

/// Request lines, with the usual fields.
const LINES: &[(&str, Fate, InH2)] = &[
    // Percent-encodings: read once, forwarded as they came.
    ("PUT /%6frders/%31", Same, Also),
    ("PUT /orders/%6F%72", Same, Also),
    ("PUT /orders/a%20b", Same, Also),
    ("PUT /orders/%23", Same, Also),
    ("PUT /orders/%3Fx=1", Same, Also),
    ("PUT /orders/%C3%A9", Same, Also),
    ("PUT /orders/%25", Same, Also),
    ("PUT /orders/100%25", Same, Also),
    ("PUT /orders/%2541", Same, Also),
    ("PUT /orders/%252e%252e/1", Same, Also),
    ("PUT /orders/%ef%bc%8f", Same, Also),
    ("PUT /orders/a+b", Same, Also),
    ("PUT /orders/a%2Bb", Same, Also),
    ("PUT /orders/%", AMBIGUOUS, Also),
    ("PUT /orders/%4", AMBIGUOUS, Also),
    ("PUT /orders/%4g", AMBIGUOUS, Also),
    ("PUT /orders/%u0061", AMBIGUOUS, Also),
    ("PUT /orders/%+41", AMBIGUOUS, Also),
    ("PUT /orders/%c0%ae%c0%ae/users/1", AMBIGUOUS, Also),
    ("PUT /orders/%c0%af/users/1", AMBIGUOUS, Also),
    ("PUT /orders/%e0%80%ae/1", AMBIGUOUS, Also),
    ("PUT /orders/%ed%a0%80", AMBIGUOUS, Also),
    ("PUT /orders/%ff", AMBIGUOUS, Also),
    ("PUT /orders/a%0ab", AMBIGUOUS, Also),
    ("PUT /orders/a%09b", AMBIGUOUS, Also),
    ("PUT /orders/%2e%2E%2fusers", AMBIGUOUS, Also),
    ("PUT /orders%2f1", AMBIGUOUS, Also),
    ("PUT /orders%5c..%5cusers/1", AMBIGUOUS, Also),
    ("PUT /orders\\..\\users/1", AMBIGUOUS, OrRefused),
    // Segments.
    ("PUT /orders/...", Same, Also),
    ("PUT /orders/.hidden", Same, Also),
    ("PUT /orders/a..b", Same, Also),
    ("PUT /orders/a%2e%2eb", Same, Also),
    ("PUT /orders/1/", Same, Also),
    ("PUT /ORDERS/1", Same, Also),
    ("PUT /orders/1;v=2", Same, Also),
    ("PUT /orders/..;/users/1", AMBIGUOUS, Also),
    ("PUT /orders/..;x=1/users/1", AMBIGUOUS, Also),
    ("PUT /orders/.;x/1", AMBIGUOUS, Also),
    ("PUT /orders/;x/1", AMBIGUOUS, Also),
    ("PUT /orders/%2e%2e;x/users", AMBIGUOUS, Also),
    ("PUT /orders/.%2E/users/1", AMBIGUOUS, Also),
    ("PUT /./orders/1", AMBIGUOUS, Also),
    ("PUT /../orders/1", AMBIGUOUS, Also),
    ("PUT ///orders/1", AMBIGUOUS, Also),
    ("PUT /orders/1/.", AMBIGUOUS, Also),
    ("PUT //store.test/orders/1", AMBIGUOUS, Also),
    ("PUT /orders/a|b", Same, OrRefused),
    ("PUT /orders/\"<>^`{}", Same, OrRefused),
    ("PUT /orders/a:b@c!$&'()*,=~", Same, Also),
    // Queries.
    ("PUT /orders/1?", Same, Also),
    ("PUT /orders/1??a", Same, Also),
    ("PUT /orders/1?x=/../..//%2e%zz\\", Same, OrRefused),
    ("PUT /orders/1?x=http://a.test/", Same, Also),
    ("POST /orders/1?_method=DELETE", Same, Also),
    ("PUT /orders?/1", UNMATCHED, Also),
    ("PUT /orders/1?x#y", BAD, Also),
    ("PUT /orders/1#", BAD, Also),
    ("GET /orders/1#", BAD, Also),
    ("GET /#", BAD, Also),
    ("PUT #", BAD, Also),
    // Methods.
    ("put /orders/1", Same, Also),
    ("get /orders/1", Same, Also),
    ("Delete /orders/1", Same, Also),
    ("M-SEARCH /orders/1", Same, Also),
    ("P!#$%&'*+.^_`|~9 /orders/1", Same, Also),
    ("put /only/1", BAD, Also),
    ("Put /only/1", BAD, Also),
    ("PUT /only/1", Same, Also),
    ("DELETE /only/1", Same, Also),
    ("trace /orders/1", Refused(501, "bad-request"), Also),
    ("TrAcE /orders/1", Refused(501, "bad-request"), Also),
    ("connect store.test:80", Refused(501, "bad-request"), No),
    ("CONNECT /orders/1", Refused(501, "bad-request"), No),
    ("PRI *", BAD, No),
    // Forms of the target.
    ("OPTIONS *", Same, Also),
    ("OPTIONS /orders/1", Same, Also),
    ("OPTIONS http://store.test", Line("OPTIONS *"), No),
    ("GET *", BAD, Also),
    ("options *", BAD, Also),
    ("PUT http://store.test/orders/1", Line("PUT /orders/1"), No),
    ("PUT HTTP://STORE.TEST:80/orders/1?", Line("PUT /orders/1?"), No),
    ("PUT https://store.test:443/orders/1", Line("PUT /orders/1"), No),
    ("PUT http://store.test/orders/%2e%2e/1", AMBIGUOUS, No),
    ("PUT http://store.test//orders/1", AMBIGUOUS, No),
    ("PUT http://store.test", UNMATCHED, No),
    ("PUT http://store.test:443/orders/1", BAD, No),
    ("PUT http://store.test./orders/1", BAD, No),
    ("PUT http://store.test@other.test/orders/1", BAD, No),
    ("PUT http://other.test@store.test/orders/1", BAD, No),
    ("PUT http://store.test\\@other.test/orders/1", BAD, No),
    ("PUT http://store.test#@other.test/orders/1", BAD, No),
    ("PUT http://store.test/orders/1#x", BAD, No),
    ("PUT http:/orders/1", BAD, No),
    ("PUT http:orders/1", BAD, No),
    ("PUT http:", BAD, No),
    ("PUT http://", BAD, No),
    ("PUT ws://store.test/orders/1", BAD, No),
    ("PUT store.test/orders/1", BAD, Also),
    ("PUT store.test:80", BAD, Also),
    ("PUT ?x", BAD, Also),
    ("PUT %2Forders/1", BAD, Also),
    ("PUT \\orders\\1", BAD, OrRefused),
];

/// Fields beyond Host and token, on `PUT /orders/1`.
const FIELDS: &[(&[&str], Fate, InH2)] = &[
    (&["X-A: 1", "x-a: 2", "X-A: 3"], Same, Also),
    (&["x-UPPER-lower: 1"], Same, Also),
    (&["X_Under_Score: 1"], Same, Also),
    (&["X.Dotted.name: 1"], Same, Also),
    (&["X-Empty:"], Same, Also),
    (&["X-Space: a  b\tc"], Same, Also),
    (&["X-Quoted: \"a\\\"b\", c;d=e"], Same, Also),
    (&["X-Looks: 1\\r\\nFencing-Token: 99"], Same, Also),
    (&["Cookie: a=1; b=2"], Same, Also),
    (&["Fencing_Token: 99"], Same, Also),
    (&["X-Fencing-Token: 99"], Same, Also),
    (&["Fencing-Token2: 99"], Same, Also),
    (&["Content-Encoding: chunked"], Same, Also),
    (&["X-Transfer-Encoding: chunked"], Same, Also),
    (&["Content-Length2: 5"], Same, Also),
    (&["Max-Forwards: 0"], Same, Also),
    (&["Range: bytes=0-1", "If-Range: \"a\""], Same, Also),
    (&["Content-Range: bytes 0-0/1"], Same, Also),
    (
        &["X-Forwarded-Host: other.test", "X-Host: other.test"],
        Same,
        Also,
    ),
    (&["Trailer: Fencing-Token"], Same, Also),
    // What ends at this hop.
    (
        &["Connection: X-A, x-b", "X-A: 1", "X-B: 2", "X-C: 3"],
        Without(&["Connection", "X-A", "X-B"]),
        No,
    ),
    (
        &["Connection: close, If-Match", "If-Match: \"a\""],
        Without(&["Connection", "If-Match"]),
        No,
    ),
    (&["Connection:", "X-A: 1"], Without(&["Connection"]), No),
    (&["Connection: ,, ,", "X-A: 1"], Without(&["Connection"]), No),
    (
        &["Connection: keep-alive", "Connection: X-A", "X-A: 1"],
        Without(&["Connection", "X-A"]),
        No,
    ),
    (&["TE: chunked, trailers"], Without(&["TE"]), No),
    (&["TE: trailers"], Without(&["TE"]), Also),
    (&["Keep-Alive: timeout=5, max=1"], Without(&["Keep-Alive"]), No),
    (
        &["Proxy-Connection: X-A", "X-A: 1"],
        Without(&["Proxy-Connection"]),
        No,
    ),
    (
        &[
            "Upgrade: h2c",
            "HTTP2-Settings: AAA",
            "Connection: Upgrade, HTTP2-Settings",
        ],
        Without(&["Upgrade", "HTTP2-Settings", "Connection"]),
        No,
    ),
    // What Connection may not take out.
    (&["Connection: Fencing-Token"], BAD, No),
    (
        &["Connection: keep-alive", "Connection: close, fencing-TOKEN"],
        BAD,
        No,
    ),
    (&["Connection: HOST"], BAD, No),
    (&["Connection: ,authorization,", "Authorization: a"], BAD, No),
    (&["Connection: Expect", "Expect: 100-continue"], BAD, No),
    (&["Connection: \"X-A\""], BAD, No),
    (&["Connection: X-A; X-B"], BAD, No),
    (&["Connection: Content-Length"], BAD, No),
    // What would change the request behind the gate.
    (&["X-HTTP-Method-Override: DELETE"], OVERRIDE, Also),
    (&["x-http-method-override: PUT"], OVERRIDE, Also),
    (&["X-HTTP-Method: DELETE"], OVERRIDE, Also),
    (&["X-Method-Override: DELETE"], OVERRIDE, Also),
    (&["X-Original-Method: DELETE"], OVERRIDE, Also),
    (&["X_HTTP_Method_Override: DELETE"], OVERRIDE, Also),
    (&["X-HTTP_METHOD-override:"], OVERRIDE, Also),
    (&["X.HTTP.Method: DELETE"], OVERRIDE, Also),
    (&["X-Original-URL: /users/1"], AMBIGUOUS, Also),
    (&["X-Rewrite-URL: /users/1"], AMBIGUOUS, Also),
    (&["X_ORIGINAL_URL: /orders/1"], AMBIGUOUS, Also),
    // Expectations.
    (&["Expect: 100-Continue"], Same, Also),
    (&["Expect:"], Refused(417, "bad-request"), Also),
    (&["Expect: 100-continue, x"], Refused(417, "bad-request"), Also),
    (&["Expect: x"], Refused(417, "bad-request"), Also),
    (
        &["Upgrade: websocket", "Connection: Upgrade"],
        Refused(403, "upgrade-refused"),
        No,
    ),
    (
        &["Upgrade: h2c, websocket", "Connection: Upgrade"],
        Refused(403, "upgrade-refused"),
        No,
    ),
    (
        &["Upgrade: TLS/1.0", "Connection: Upgrade"],
        Refused(403, "upgrade-refused"),
        No,
    ),
    // Tokens.
    (&["Fencing-Token: 9"], Refused(400, "malformed-token"), Also),
    (&["fencing-token: 10"], Refused(400, "malformed-token"), Also),
];

/// A request by its line and its fields; its body goes with a Content-Length where there is one.
struct Row<'a> {
    line: &'a str,
    fields: Vec<&'a str>,
    body: &'a str,
}

impl Row<'_> {
    fn length(&self) -> String {
        format!("Content-Length: {}", self.body.len())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut raw = format!("{} HTTP/1.1\r\n", self.line);
        for field in self.fields.iter().copied().chain([self.length().as_str()]) {
            raw += field;
            raw += "\r\n";
        }
        (raw + "\r\n" + self.body).into_bytes()
    }

    /// The lines that the backend must get; `None` where it gets nothing.
    fn lines(&self, fate: Fate) -> Option<Vec<String>> {
        let (line, gone): (&str, &[&str]) = match fate {
            Refused(..) => return None,
            Same => (self.line, &[]),
            Line(line) => (line, &[]),
            Without(names) => (self.line, names),
        };
        let length = self.length();
        let kept = self
            .fields
            .iter()
            .copied()
            .chain([length.as_str()])
            .filter(|field| {
                let name = field.split(':').next().unwrap();
                !gone.iter().any(|gone| gone.eq_ignore_ascii_case(name))
            });
        Some(
            [format!("{line} HTTP/1.1")]
                .into_iter()
                .chain(kept.map(str::to_owned))
                .collect(),
        )
    }

    /// As a head of HTTP/2, with names in lower case.
    fn head(&self) -> Vec<(String, String)> {
        let (method, target) = self.line.split_once(' ').unwrap();
        let mut head: Vec<(String, String)> = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "store.test"),
            (":path", target),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for field in self.fields.iter().copied().chain([self.length().as_str()]) {
            let (name, value) = field.split_once(':').unwrap();
            if name != "Host" {
                head.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        head
    }
}

fn rows() -> Vec<(Row<'static>, Fate, InH2)> {
    let lines = LINES.iter().map(|(line, fate, in_h2)| {
        let row = Row {
            line,
            fields: vec![HOST, TOKEN],
            body: "hello",
        };
        (row, *fate, *in_h2)
    });
    let fields = FIELDS.iter().map(|(fields, fate, in_h2)| {
        let row = Row {
            line: "PUT /orders/1",
            fields: [&[HOST, TOKEN], *fields].concat(),
            body: "hello",
        };
        (row, *fate, *in_h2)
    });
    lines.chain(fields).collect()
}

#[test]
fn each_request_is_refused_or_goes_on_as_what_was_judged() {
    let (_backend, told, gate) = start();
    let rows = rows();
    assert!(rows.len() > 100);
    for (row, fate, _) in rows {
        let shown = format!("{:?}", String::from_utf8_lossy(&row.bytes()));
        let mut conn = Conn::open(gate.port);
        conn.send(row.bytes());
        let reply = conn.reply();
        let lines = row.lines(fate);
        match fate {
            Refused(status, reason) => {
                assert_eq!(
                    (reply.status, reply.reason()),
                    (status, reason),
                    "{shown}: {reply:?}"
                );
            }
            Same | Line(_) | Without(_) => assert_eq!(reply.status, 200, "{shown}: {reply:?}"),
        }
        let arrived = told.try_recv().ok();
        assert_eq!(
            arrived.as_ref().map(|(request, _)| &request.lines),
            lines.as_ref(),
            "{shown}"
        );
        if let Some((_, body)) = arrived {
            assert_eq!(body, b"hello", "{shown}");
        }
    }
}

#[test]
fn each_request_meets_the_same_fate_in_http_2() {
    let (_backend, told, gate) = start();
    for (row, fate, in_h2) in rows() {
        if in_h2 == No {
            continue;
        }
        let shown = format!("{:?}", row.head());
        let mut client = Frames::open(gate.port);
        client.headers(1, &row.head(), false);
        let _refused_by_now = client.try_send(frame(frames::DATA, frames::END_STREAM, 1, b"hello"));
        let status = match client.outcome(1) {
            Outcome::Answered(status, body) => {
                if let Refused(_, reason) = fate {
                    assert!(
                        body.contains(&format!("\"reason\":\"{reason}\"")),
                        "{shown}: {body}"
                    );
                }
                Some(status)
            }
            Outcome::Reset(_, None) | Outcome::Closed(_) => None,
            other @ Outcome::Reset(..) => panic!("{shown}: {other:?}"),
        };
        let expected = match fate {
            Refused(status, _) => status,
            Same | Line(_) | Without(_) => 200,
        };
        // What the h2 crate finds malformed it resets.
        let malformed = status.is_none() && (in_h2 == OrRefused || matches!(fate, Refused(400, _)));
        assert!(status == Some(expected) || malformed, "{shown}: {status:?}");
        let arrived = told.try_recv().ok().map(|(request, body)| {
            assert_eq!(body, b"hello", "{shown}");
            sorted(&request.lines)
        });
        let lines = row.lines(fate).filter(|_| !malformed).map(|lines| sorted(&lines));
        assert_eq!(arrived, lines, "{shown}");
    }
}

/// The request line, and the fields in an order of their own with names in lower case: HTTP/2 has Host before all
/// others, and fields of one name beside each other.
fn sorted(lines: &[String]) -> Vec<String> {
    let mut fields: Vec<String> = lines[1..]
        .iter()
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            format!("{}: {}", name.to_ascii_lowercase(), value.trim())
        })
        .collect();
    fields.sort();
    fields.insert(0, lines[0].clone());
    fields
}

/// Whole messages by their bytes: what is refused, with which status.
const REFUSED_RAW: &[(u16, &str)] = &[
    (400, "GET /orders/1\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.10\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/01.1\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTPS/1.1\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTP 1.1\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.1\0\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1\u{b}HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "PUT\u{b}/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1\rHTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.1\r\n \r\nHost: a\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.1\r\nHost: a\r\n \r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.1\r\nHost: a\r\n\t\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.1\r\nHost: a\r\r\n\r\n"),
    (400, "PUT /orders/1 HTTP/1.1\r\n\rHost: a\r\n\r\n"),
    (
        400,
        "\r\n\r\n\r\n\r\n\r\n\r\nPUT /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (400, "\nPUT /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "\u{feff}PUT /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, "PUT http://a/orders/1 HTTP/1.1\r\nFencing-Token: 9\r\n\r\n"),
    (
        400,
        "PUT http://a/orders/1 HTTP/1.1\r\nHost:\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT http://a/orders/1 HTTP/1.1\r\nHost: a\r\nHost: a\r\nFencing-Token: 9\r\n\r\n",
    ),
    (400, "PUT /orders/1 HTTP/1.0\r\nFencing-Token: 9\r\n\r\n"),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: [::1\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: [::1]x\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: [a]\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: a\\b\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: a?b\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: a#b\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: a:-1\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: a:1:2\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "PUT /orders/1 HTTP/1.1\r\nHost: caf\u{e9}\r\nFencing-Token: 9\r\n\r\n",
    ),
    (
        400,
        "GET /free HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        400,
        "GET /free HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 0\r\n\r\n123",
    ),
    (
        400,
        "HEAD /free HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
    ),
    (
        400,
        "OPTIONS * HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
    ),
    (400, "GET /free#x HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        400,
        "GET /free HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: DELETE\r\n\r\n",
    ),
    (
        400,
        "GET /orders/1 HTTP/1.1\r\nHost: a\r\nX-Original-URL: /users/1\r\n\r\n",
    ),
    (428, "get /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        428,
        "PUT /orders/1 HTTP/1.1\r\nHost: a\r\nFencing_Token: 9\r\n\r\n",
    ),
    (
        501,
        "CONNECT store.test:80 HTTP/1.1\r\nHost: store.test:80\r\n\r\n",
    ),
    (505, "PRI * HTTP/2.0\r\nHost: a\r\n\r\n"),
];

#[test]
fn whole_messages_that_are_refused_reach_nobody_and_neither_does_what_is_behind_them() {
    let (backend, _told, gate) = start();
    for (status, raw) in REFUSED_RAW {
        let mut conn = Conn::open(gate.port);
        conn.send(raw);
        let reply = conn.try_reply(raw.starts_with("HEAD"));
        let reply = reply.unwrap_or_else(|error| panic!("{error}: {raw:?}"));
        assert_eq!(reply.status, *status, "{raw:?}: {reply:?}");
        assert_ne!(reply.reason(), "", "{raw:?}");
    }
    assert_eq!(backend.connections(), 0);
}

/// Whole messages, and the line and the body of the one request that the backend gets of each.
const FORWARDED_RAW: &[(&str, &str, &str)] = &[
    (
        "\r\nPUT /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 9\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "",
    ),
    (
        "PUT /orders/1 HTTP/1.1\r\nHost:a\r\nFencing-Token:\t9 \t\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "",
    ),
    (
        "PUT /orders/1 HTTP/1.1\r\nHost: [::1]:8080\r\nFencing-Token: 9\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "",
    ),
    (
        "PUT http://[::1]/orders/1 HTTP/1.1\r\nHost: [::1]:80\r\nFencing-Token: 9\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "",
    ),
    (
        "PUT /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 9\r\ntransfer-encoding: CHUNKED\r\n\r\n00A;x=\"y\"\r\n0123456789\r\n0;z\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "0123456789",
    ),
    // HTTP/1.0 without a length has no body, whatever follows.
    (
        "PUT /orders/1 HTTP/1.0\r\nHost: a\r\nFencing-Token: 9\r\n\r\nDELETE /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 99\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "",
    ),
    (
        "PUT /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 9\r\nConnection: close\r\n\r\nDELETE /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 99\r\n\r\n",
        "PUT /orders/1 HTTP/1.1",
        "",
    ),
    // A body that looks like a request, where some think that there is none.
    (
        "GET /free HTTP/1.1\r\nHost: a\r\nContent-Length: 38\r\n\r\nDELETE /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /free HTTP/1.1",
        "DELETE /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "DELETE /orders/1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 9\r\nTransfer-Encoding: chunked\r\n\r\n26\r\nDELETE /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n\r\n0\r\n\r\n",
        "DELETE /orders/1 HTTP/1.1",
        "DELETE /orders/1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    // A read that no rule matches may ask for another path.
    (
        "GET /free HTTP/1.1\r\nHost: a\r\nX-Original-URL: /other\r\n\r\n",
        "GET /free HTTP/1.1",
        "",
    ),
];

#[test]
fn whole_messages_reach_the_backend_once_and_with_their_own_body() {
    let (_backend, told, gate) = start();
    for (raw, line, body) in FORWARDED_RAW {
        let mut conn = Conn::open(gate.port);
        conn.send(raw);
        let reply = conn.try_reply(false);
        let reply = reply.unwrap_or_else(|error| panic!("{error}: {raw:?}"));
        assert_eq!(reply.status, 200, "{raw:?}: {reply:?}");
        let (request, came) = told.recv_timeout(gate::PATIENCE).unwrap();
        assert_eq!(request.lines[0], *line, "{raw:?}");
        assert_eq!(String::from_utf8_lossy(&came), *body, "{raw:?}");
        let _any = conn.patience(std::time::Duration::from_millis(50)).read_to_end();
        assert!(told.try_recv().is_err(), "{raw:?}: something came behind it");
    }
}

#[test]
fn what_is_pipelined_behind_an_upgrade_is_judged_by_itself() {
    let (_backend, told, gate) = start();
    gate.send(ask("PUT", "/orders/1").token(34)).is_ok();
    let _first = told.recv_timeout(gate::PATIENCE).unwrap();
    let behind = ask("DELETE", "/orders/1").token(33).bytes();
    let h2c = "GET /free HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n";
    let mut conn = Conn::open(gate.port);
    conn.send([h2c.as_bytes(), &behind].concat());
    conn.reply().is_ok();
    conn.reply().is(412, "stale-token");
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(request.lines, ["GET /free HTTP/1.1", "Host: a"]);
    // Frames of HTTP/2 behind it are no request.
    let mut conn = Conn::open(gate.port);
    conn.send([h2c.as_bytes(), frames::PREFACE].concat());
    conn.reply().is_ok();
    assert_eq!(conn.reply().status, 505);
    // Behind an upgrade that is refused, too.
    let websocket = "GET /free HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut conn = Conn::open(gate.port);
    conn.send([websocket.as_bytes(), &behind].concat());
    conn.reply().is(403, "upgrade-refused");
    let _any = conn.patience(std::time::Duration::from_millis(50)).read_to_end();
    let (request, _) = told.recv_timeout(gate::PATIENCE).unwrap();
    assert_eq!(request.lines[0], "GET /free HTTP/1.1", "the h2c one");
    assert!(told.try_recv().is_err());
}
