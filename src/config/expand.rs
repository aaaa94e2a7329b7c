//! Environment variables inside values: `${NAME}`, `${NAME:-default}`, and `$$` for a dollar sign.
//!
//! This runs on the tree, never on the text: what a variable holds is always a value and can't become a key or
//! open a map. Its content is never shown in a problem. Called by `mod.rs`.

use super::tree::{Found, Node, Value};

/// Looks a variable up.
pub(super) type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Expands all values below `node`; those that can't be become [`Value::Bad`].
pub(super) fn expand(node: &mut Node, environment: Environment<'_>, found: &mut Vec<Found>) {
    match &mut node.value {
        Value::Text(text) if text.contains('$') => match expanded(text, environment) {
            Ok(text) => node.value = Value::Text(text),
            Err(message) => {
                found.push((node.at, message));
                node.value = Value::Bad;
            }
        },
        Value::List(items) => items.iter_mut().for_each(|n| expand(n, environment, found)),
        Value::Map(entries) => entries
            .iter_mut()
            .for_each(|e| expand(&mut e.node, environment, found)),
        Value::Nothing | Value::Text(_) | Value::Bad => {}
    }
}

fn expanded(text: &str, environment: Environment<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(tail) = rest.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some(inside) = rest.strip_prefix('{') {
            let end = inside
                .find('}')
                .ok_or("${ is not closed; write ${NAME}, or $$ for a dollar sign")?;
            out.push_str(&variable(&inside[..end], environment)?);
            rest = &inside[end + 1..];
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn variable(inside: &str, environment: Environment<'_>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let sound = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !sound {
        return Err(format!(
            "${{{inside}}} is not a variable; write ${{NAME}} or ${{NAME:-default}}, or $$ for a dollar sign"
        ));
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_string()),
        (None, None) => Err(format!(
            "the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::expanded;

    fn with(text: &str) -> Result<String, String> {
        expanded(text, &|name| match name {
            "HOST" => Some("store".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn variables_defaults_and_dollars_are_put_in() {
        for (text, wanted) in [
            ("http://${HOST}:80", "http://store:80"),
            ("${HOST:-x}", "store"),
            ("${NONE:-x:-y}", "x:-y"),
            ("${NONE:-}", ""),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY}", ""),
            ("$${HOST}", "${HOST}"),
            ("a$b$", "a$b$"),
        ] {
            assert_eq!(with(text).as_deref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_not_set_or_not_a_variable_is_a_problem() {
        for bad in ["${NONE}", "${HOST", "${}", "${1A}", "${A B}"] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }
}
