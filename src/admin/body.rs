//! What an operator sends: JSON, read exactly. Unknown keys are refused, bodies are bounded in size and time, and a
//! token is never rounded.

use std::fmt;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, de};

use super::problem::Problem;
use crate::base::{Token, TokenFormat};
use crate::config::some_duration;

/// The body of a raise.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct RaiseOrder {
    pub(super) resource: String,
    pub(super) token: TokenText,
    pub(super) format: Option<FormatName>,
    pub(super) timeout: Option<String>,
}

/// The body of a reset.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetOrder {
    pub(super) resource: String,
    pub(super) token: TokenText,
    pub(super) reason: String,
    pub(super) format: Option<FormatName>,
    pub(super) timeout: Option<String>,
}

/// The name of a token's format, as the configuration has it.
#[derive(Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum FormatName {
    Integer,
    Hex,
    Pair,
}

impl From<FormatName> for TokenFormat {
    fn from(name: FormatName) -> TokenFormat {
        match name {
            FormatName::Integer => TokenFormat::Integer,
            FormatName::Hex => TokenFormat::Hex,
            FormatName::Pair => TokenFormat::Pair,
        }
    }
}

/// A token as it was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TokenText {
    Text(String),
    /// A JSON number: it says an integer, whatever the format.
    Number(u64),
}

impl TokenText {
    /// Reads it in the resource's format.
    pub(super) fn read(&self, format: TokenFormat) -> Result<Token, Problem> {
        let token = match (self, format) {
            (TokenText::Text(text), _) => format.parse(text.as_bytes()).ok(),
            (TokenText::Number(number), TokenFormat::Integer) => Some(Token(u128::from(*number))),
            // 10 would be ten to whoever wrote it, and sixteen as hex.
            (TokenText::Number(_), TokenFormat::Hex | TokenFormat::Pair) => None,
        };
        token.ok_or_else(|| {
            let right = match format {
                TokenFormat::Integer => "a whole number from 0 to 18446744073709551615",
                TokenFormat::Hex => "a string of 1 to 16 hex digits",
                TokenFormat::Pair => "a string as \"EPOCH.COUNTER\"",
            };
            let detail = format!(
                "the token is not {right}: the resource's format is {}",
                format.as_str()
            );
            Problem::new(StatusCode::BAD_REQUEST, "malformed-token", detail)
        })
    }
}

impl<'de> Deserialize<'de> for TokenText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TokenText, D::Error> {
        deserializer.deserialize_any(TokenVisitor)
    }
}

struct TokenVisitor;

impl Visitor<'_> for TokenVisitor {
    type Value = TokenText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token: a string, or a whole number up to 18446744073709551615")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<TokenText, E> {
        Ok(TokenText::Text(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<TokenText, E> {
        Ok(TokenText::Number(number))
    }
}

/// Reads the whole body as JSON.
pub(super) async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let reading = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX);
    let bytes = tokio::time::timeout(BODY_TIMEOUT, reading).await.map_err(|_| {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "bad-request",
            "the body did not come in time",
        )
    })?;
    let bytes = bytes.map_err(|_| {
        let detail = format!("the body is longer than {BODY_BYTES_MAX} bytes, or broke off");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "bad-request", detail)
    })?;
    serde_json::from_slice(&bytes).map_err(|error| Problem::bad(error.to_string()))
}

/// How long an operator's request may wait.
pub(super) fn patience(text: Option<&str>) -> Result<Duration, Problem> {
    let Some(text) = text else {
        return Ok(PATIENCE);
    };
    match some_duration(text) {
        Ok(wait) if wait <= PATIENCE_MAX => Ok(wait),
        Ok(_) => Err(Problem::bad("timeout: 10m is the longest")),
        Err(detail) => Err(Problem::bad(format!("timeout: {detail}"))),
    }
}

/// Refuses names that no resource can have.
pub(super) fn check_resource(resource: &str) -> Result<(), Problem> {
    if resource.is_empty() {
        return Err(Problem::bad("resource: the name is empty"));
    }
    Ok(())
}

/// The operator's words for the audit trail, without the spaces around them.
pub(super) fn check_reason(reason: &str) -> Result<&str, Problem> {
    match reason.trim() {
        "" => Err(Problem::bad("reason: say why, it goes into the audit trail")),
        long if long.len() > REASON_BYTES_MAX => Err(Problem::bad(format!(
            "reason: longer than {REASON_BYTES_MAX} bytes"
        ))),
        words => Ok(words),
    }
}

const BODY_BYTES_MAX: usize = 64 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const REASON_BYTES_MAX: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::{RaiseOrder, TokenText};
    use crate::base::{Token, TokenFormat};

    fn token(json: &str) -> Result<TokenText, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_token_is_taken_exactly_or_not_at_all() {
        let largest = token("18446744073709551615").unwrap();
        assert_eq!(
            largest.read(TokenFormat::Integer).unwrap(),
            Token(u128::from(u64::MAX))
        );
        let beyond = token("\"9007199254740993\"").unwrap();
        assert_eq!(
            beyond.read(TokenFormat::Integer).unwrap(),
            Token(9_007_199_254_740_993)
        );
        for bad in ["1.0", "1e3", "-1", "18446744073709551616", "null", "[1]", "true"] {
            assert!(token(bad).is_err(), "{bad}");
        }
        assert!(token("10").unwrap().read(TokenFormat::Hex).is_err());
        assert!(token("\" 1x\"").unwrap().read(TokenFormat::Integer).is_err());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let order = r#"{"resource":"a","token":"1","tokem":"2"}"#;
        let error = serde_json::from_str::<RaiseOrder>(order).unwrap_err();
        assert!(error.to_string().contains("tokem"), "{error}");
    }
}
