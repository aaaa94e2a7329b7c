//! Asks the admin address: one request a connection. It retries nothing.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::secure::Secure;
use super::table::plain;
use super::unclear;
use crate::base::{Buf, Secret};
use crate::cli::failed::Failed;
use crate::net::{ClientTls, Duplex, Stream};

/// A client of one admin address.
pub(in crate::cli) struct Client {
    /// `HOST:PORT`.
    address: String,
    tls: Option<ClientTls>,
    token: Option<Secret>,
    runtime: tokio::runtime::Runtime,
}

/// An answer, read whole.
pub(in crate::cli) struct Reply {
    pub(in crate::cli) status: u16,
    /// As it came.
    pub(in crate::cli) text: String,
    /// What it says; null where it is not JSON.
    pub(super) value: Value,
}

impl Client {
    /// A client for `HOST:PORT`, also written as a URL. Over TLS where that says `https://`.
    pub(super) fn new(address: &str, secure: &Secure, token: Option<Secret>) -> Result<Client, Failed> {
        let (address, tls) = match address.strip_prefix("https://") {
            Some(address) => (address.trim_end_matches('/'), true),
            None => {
                let plain = address.strip_prefix("http://").unwrap_or(address);
                (plain.trim_end_matches('/'), false)
            }
        };
        let tls = secure.load(address, tls)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failed::now(format!("the system gives no runtime: {error}")))?;
        Ok(Client {
            address: address.to_owned(),
            tls,
            token,
            runtime,
        })
    }

    /// One request, with JSON if there is a body.
    pub(in crate::cli) fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
        patience: Duration,
    ) -> Result<Reply, Failed> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.address);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let bytes = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = request.body(Full::new(bytes)).map_err(|error| {
            Failed::wrong(format!(
                "{:?} can't be asked: {error}; write HOST:PORT",
                self.address
            ))
        })?;
        let asking = async { tokio::time::timeout(patience, self.exchange(request)).await };
        self.runtime.block_on(asking).unwrap_or_else(|_late| {
            Err(Failed::now(format!(
                "{} did not answer within {} s",
                self.address,
                patience.as_secs()
            )))
        })
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply, Failed> {
        let stream = TcpStream::connect(&self.address)
            .await
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::InvalidInput => {
                    Failed::wrong(format!("{:?} is not an address; write HOST:PORT", self.address))
                }
                _ => Failed::now(format!(
                    "no gate answers at {}: {error}; --admin or -c tells where it is",
                    self.address
                )),
            })?;
        let broken = |error: &dyn Error| {
            // The library's own word is short; what happened stands behind it, a refused certificate for one.
            let cause = error
                .source()
                .map_or_else(String::new, |cause| format!(": {cause}"));
            Failed::now(format!(
                "the connection to {} broke: {error}{cause}",
                self.address
            ))
        };
        let stream = match &self.tls {
            None => Stream::tcp(stream),
            Some(tls) => tls
                .connect(stream)
                .await
                .map_err(|error| Failed::now(format!("no TLS with {}: {error}", self.address)))?,
        };
        let stream = Duplex::new(stream, Buf::default());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        // It ends with the runtime; its errors come out of the sender too.
        tokio::spawn(connection);
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(&error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| broken(&*error))?;
        let text = String::from_utf8(body.to_bytes().to_vec()).map_err(|_| unclear())?;
        let value = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Reply { status, text, value })
    }
}

impl Reply {
    /// This reply, if it says that all went well.
    pub(super) fn fine(self) -> Result<Reply, Failed> {
        match (self.status, &self.value) {
            (200, Value::Object(_)) => return Ok(self),
            (_, Value::Object(_)) => {}
            (_, _) => return Err(unclear()),
        }
        let said = |member: &str| self.value[member].as_str().map(plain);
        let detail = said("detail").unwrap_or_else(|| format!("it answered {}", self.status));
        let reason = said("reason").unwrap_or_else(|| self.status.to_string());
        let message = format!("{reason}: {detail}");
        Err(match self.status {
            400 | 413 | 414 | 415 => Failed::wrong(message),
            _ => Failed::now(message),
        })
    }
}

/// As a value in a query: everything but letters, digits and `-._~` by its bytes.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => write!(encoded, "%{byte:02X}").expect("writing to a String can't fail"),
        }
    }
    encoded
}

/// A page of 1,000 fences with the longest names stays below.
const ANSWER_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn a_name_survives_the_query() {
        assert_eq!(encoded("bucket/a b&c=+é"), "bucket%2Fa%20b%26c%3D%2B%C3%A9");
    }
}
