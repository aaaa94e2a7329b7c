//! The request target and the Host: which forms are taken, and whether the two name the same place. It never
//! decodes or normalises. Used by the request parser.

/// How the target came. It is always forwarded in origin form (or as `*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetForm {
    /// `/path?query`
    Origin,
    /// `http://host/path?query`
    Absolute,
    /// `*`, for OPTIONS
    Asterisk,
}

/// A target taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target<'b> {
    pub form: TargetForm,
    /// Path and query, the bytes as they came.
    pub origin: &'b str,
    /// The authority of an absolute form, with its scheme's default port.
    pub authority: Option<(&'b str, &'static str)>,
}

/// Takes a request target apart.
pub(super) fn read_target<'b>(method: &str, target: &'b str) -> Result<Target<'b>, &'static str> {
    // The token parser lets no space, no control byte and no DEL through.
    if !target.is_ascii() {
        return Err("the request target holds a byte that is not visible ASCII");
    }
    if memchr::memchr(b'#', target.as_bytes()).is_some() {
        return Err("the request target has a fragment");
    }
    if target.starts_with('/') {
        return Ok(Target {
            form: TargetForm::Origin,
            origin: target,
            authority: None,
        });
    }
    if target == "*" {
        return match method {
            "OPTIONS" => Ok(Target {
                form: TargetForm::Asterisk,
                origin: target,
                authority: None,
            }),
            _ => Err("the request target * is for OPTIONS alone"),
        };
    }
    absolute(method, target)
}

fn absolute<'b>(method: &str, target: &'b str) -> Result<Target<'b>, &'static str> {
    let (rest, default_port) = if let Some(rest) = strip_scheme(target, "http://") {
        (rest, ":80")
    } else if let Some(rest) = strip_scheme(target, "https://") {
        (rest, ":443")
    } else {
        return Err("the request target is neither a path nor an http or https URL");
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(end);
    let (form, origin) = match origin {
        // RFC 9112, 3.2.4: the last proxy turns the URL without a path back into the asterisk.
        "" if method == "OPTIONS" => (TargetForm::Asterisk, "*"),
        "" => (TargetForm::Absolute, "/"),
        path if path.starts_with('/') => (TargetForm::Absolute, path),
        _ => return Err("the request target has a query but no path"),
    };
    Ok(Target {
        form,
        origin,
        authority: Some((authority, default_port)),
    })
}

fn strip_scheme<'b>(target: &'b str, scheme: &str) -> Option<&'b str> {
    let start = target.get(..scheme.len())?;
    start
        .eq_ignore_ascii_case(scheme)
        .then(|| &target[scheme.len()..])
}

/// Reads a Host value: a name or an address, and a port. No user, no list, no percent-encoding.
pub(super) fn read_host(value: &[u8]) -> Result<&str, &'static str> {
    const BAD: &str = "the Host is not a name or an address with an optional port";
    let text = std::str::from_utf8(value).map_err(|_| BAD)?;
    let (name_is_fine, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(BAD)?;
            (address.parse::<std::net::Ipv6Addr>().is_ok(), port)
        }
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (!name.is_empty() && name.bytes().all(is_name_byte), port)
        }
    };
    match name_is_fine && is_port(port) {
        true => Ok(text),
        false => Err(BAD),
    }
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')
}

/// Nothing, or a colon and a port number.
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        None => text.is_empty(),
        Some(digits) => {
            digits.len() <= 5 && digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_ok()
        }
    }
}

/// True if the Host and the authority of an absolute-form target name the same place.
pub(super) fn same_place(host: &str, authority: &str, default_port: &str) -> bool {
    let bare = |text: &'_ str| text.strip_suffix(default_port).map_or(text.len(), str::len);
    host[..bare(host)].eq_ignore_ascii_case(&authority[..bare(authority)])
}
