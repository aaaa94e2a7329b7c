//! Who may present tokens: a rule's `allow`, and by how far a token may raise: `max_step`. Called by `rules.rs`.

use ipnet::IpNet;

use super::reader::{Map, Reader};
use super::units;
use crate::base::TokenFormat;
use crate::rules::{Allow, CertPattern};

/// Reads a rule's `allow`. The outer `None` says that a problem was reported, the inner one that everybody may.
#[allow(clippy::option_option)]
pub(super) fn allow(reader: &mut Reader, listener: &Map<'_>, rule: &Map<'_>) -> Option<Option<Allow>> {
    if !rule.has("allow") {
        return Some(None);
    }
    let map = reader.section(rule, "allow")?;
    let (by_net, by_cert) = (map.has("cidr"), map.has("client_cert"));
    if !by_net && !by_cert {
        let message = format!(
            "{} allows nobody; give it cidr, client_cert or both, or leave it out",
            map.name()
        );
        reader.problem(map.at, message);
        return None;
    }
    let cidr = by_net.then(|| reader.values(&map, "cidr", network));
    let client_cert = by_cert.then(|| certificate(reader, listener, &map));
    Some(Some(Allow {
        cidr: match cidr {
            Some(nets) => nets?.into_iter().map(|net| net.value).collect(),
            None => Box::default(),
        },
        client_cert: match client_cert {
            Some(pattern) => Some(pattern?),
            None => None,
        },
    }))
}

fn certificate(reader: &mut Reader, listener: &Map<'_>, map: &Map<'_>) -> Option<CertPattern> {
    let pattern = reader.placed(map, "client_cert", CertPattern::parse)?;
    if !listener.has_below("tls", "client_ca_file") {
        let message = format!(
            "{} needs the listener's tls.client_ca_file: without it no client's certificate is verified",
            map.path_to("client_cert")
        );
        reader.problem(pattern.at, message);
        return None;
    }
    Some(pattern.value)
}

/// Reads a token's `max_step`. The outer `None` says that a problem was reported, the inner one that any step is
/// fine.
#[allow(clippy::option_option)]
pub(super) fn max_step(
    reader: &mut Reader,
    token: &Map<'_>,
    format: Option<TokenFormat>,
) -> Option<Option<u64>> {
    if !token.has("max_step") {
        return Some(None);
    }
    let step = reader.placed(token, "max_step", step)?;
    match format? {
        TokenFormat::Integer => Some(Some(step.value)),
        other @ (TokenFormat::Hex | TokenFormat::Pair) => {
            let message = format!(
                "{} is for format: integer; how far apart two tokens of format: {} are means nothing",
                token.path_to("max_step"),
                other.as_str()
            );
            reader.problem(step.at, message);
            None
        }
    }
}

fn step(text: &str) -> Result<u64, String> {
    match units::whole(text) {
        Some(step @ 1..) => Ok(step),
        Some(0) | None => Err(format!(
            "{text:?} is not a whole number from 1 to 18446744073709551615"
        )),
    }
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<std::net::IpAddr>() {
        return Ok(canonical(IpNet::from(address)));
    }
    let net: IpNet = text.parse().map_err(|_| {
        format!("{text:?} is not a network; write ADDRESS/BITS, as 10.0.0.0/8 or fd00::/8, or one address")
    })?;
    if net.addr() != net.network() {
        return Err(format!(
            "{text:?} has bits beyond its /{}; the network is {}",
            net.prefix_len(),
            net.trunc()
        ));
    }
    Ok(canonical(net))
}

/// Clients' addresses are compared in their canonical form, so networks of IPv4 addresses in IPv6 are IPv4's.
fn canonical(net: IpNet) -> IpNet {
    match (net.network().to_canonical(), net.prefix_len()) {
        (v4 @ std::net::IpAddr::V4(_), bits @ 96..) if matches!(net, IpNet::V6(_)) => {
            IpNet::new(v4, bits - 96).unwrap_or(net)
        }
        _ => net,
    }
}

#[cfg(test)]
mod tests {
    use super::{network, step};

    #[test]
    fn networks_are_read_exactly() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("::1", "::1/128"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
        ] {
            assert_eq!(network(text).unwrap().to_string(), shown, "{text}");
        }
        for bad in [
            "",
            "10",
            "10.0.0.0/33",
            "10.0.0/8",
            "fd00::/129",
            "host",
            "10.0.0.0/-1",
        ] {
            assert!(network(bad).is_err(), "{bad}");
        }
        assert!(
            network("10.1.0.0/8")
                .unwrap_err()
                .contains("the network is 10.0.0.0/8")
        );
        assert!(
            network("fd00::1/8")
                .unwrap_err()
                .contains("the network is fd00::/8")
        );
    }

    #[test]
    fn a_step_is_at_least_one() {
        assert_eq!(step("18446744073709551615"), Ok(u64::MAX));
        assert!(
            ["0", "-1", "1e6", "18446744073709551616", ""]
                .iter()
                .all(|t| step(t).is_err())
        );
    }
}
