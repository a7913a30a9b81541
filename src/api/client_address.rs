//! The address of a client behind proxies.

use std::net::{IpAddr, SocketAddr};

use actix_web::http::header::HeaderMap;

use crate::settings::{ForwardedHeader, IpNetwork};

/// Trusted proxies.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    /// Their networks.
    pub networks: Vec<IpNetwork>,
    /// The header in which they report the client.
    pub header: ForwardedHeader,
}

impl Default for TrustedProxies {
    /// Trusts no proxy.
    fn default() -> Self {
        Self { networks: Vec::new(), header: ForwardedHeader::XForwardedFor }
    }
}

impl TrustedProxies {
    /// The client of a request that came from this peer. Each proxy appends the address of its own peer to the header,
    /// so it is read from the right, as long as the reporting address is trusted.
    pub(crate) fn client_address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let lines: Vec<_> = headers.get_all(self.header_name()).map(|line| line.to_str().ok()).collect();
        self.find_client(peer, &lines)
    }

    /// The same for a request to the REST proxy.
    pub(crate) fn egress_client_address(&self, peer: IpAddr, headers: &http::HeaderMap) -> IpAddr {
        let lines: Vec<_> = headers.get_all(self.header_name()).iter().map(|line| line.to_str().ok()).collect();
        self.find_client(peer, &lines)
    }

    fn find_client(&self, peer: IpAddr, lines: &[Option<&str>]) -> IpAddr {
        let mut from = peer.to_canonical();
        if !self.is_trusted(from) {
            return from;
        }
        for before in self.reported_addresses(lines).into_iter().rev() {
            // An unknown or hidden address ends the chain.
            let Some(before) = before else { break };
            from = before;
            if !self.is_trusted(from) {
                break;
            }
        }
        from
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// The reported addresses, the first one first; `None` for an entry that is no address.
    fn reported_addresses(&self, lines: &[Option<&str>]) -> Vec<Option<IpAddr>> {
        let read: fn(&str) -> Option<IpAddr> = match self.header {
            ForwardedHeader::XForwardedFor => parse_address,
            ForwardedHeader::Forwarded => parse_forwarded_element,
        };
        lines.iter().flat_map(|line| line.unwrap_or("?").split(',').map(move |one| read(one.trim()))).collect()
    }

    fn header_name(&self) -> &'static str {
        match self.header {
            ForwardedHeader::XForwardedFor => "x-forwarded-for",
            ForwardedHeader::Forwarded => "forwarded",
        }
    }
}

/// `for=` of one element of `Forwarded`.
fn parse_forwarded_element(element: &str) -> Option<IpAddr> {
    let given = element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim())
    })?;
    parse_address(given.trim_matches('"'))
}

/// An IP address, with or without a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let found = bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    found.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    fn origin(header: ForwardedHeader, peer: &str, name: &'static str, lines: &[&str]) -> String {
        let trusted = ["10.0.0.0/8", "::1"].map(|network| network.parse().unwrap()).to_vec();
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(line).unwrap());
        }
        TrustedProxies { networks: trusted, header }.client_address(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let client = |peer, lines: &[&str]| origin(ForwardedHeader::XForwardedFor, peer, "x-forwarded-for", lines);
        // The peer is no trusted proxy, so the header is ignored.
        assert_eq!(client("203.0.113.9", &["192.0.2.1"]), "203.0.113.9");
        assert_eq!(client("10.0.0.1", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(client("::ffff:10.0.0.1", &["192.0.2.1"]), "192.0.2.1");
        // What the client itself sent is to the left of what the proxy appends.
        assert_eq!(client("10.0.0.1", &["1.2.3.4, 192.0.2.1"]), "192.0.2.1");
        assert_eq!(client("10.0.0.1", &["1.2.3.4", "192.0.2.1, 10.0.0.7"]), "192.0.2.1");
        assert_eq!(client("10.0.0.1", &["1.2.3.4", "nonsense, 10.0.0.7"]), "10.0.0.7");
        assert_eq!(client("10.0.0.1", &["10.0.0.7"]), "10.0.0.7");
        assert_eq!(client("10.0.0.1", &["192.0.2.1:1234"]), "192.0.2.1");
        assert_eq!(client("::1", &["[2001:db8::1]:80"]), "2001:db8::1");
        assert_eq!(client("::1", &[]), "::1");
    }

    #[test]
    fn forwarded_header_is_read_if_configured() {
        let client = |lines: &[&str]| origin(ForwardedHeader::Forwarded, "10.0.0.1", "forwarded", lines);
        assert_eq!(client(&["for=1.2.3.4, for=192.0.2.1;proto=https;by=10.0.0.1"]), "192.0.2.1");
        assert_eq!(client(&["For=\"[2001:db8::1]:4711\""]), "2001:db8::1");
        assert_eq!(client(&["for=192.0.2.1", "for=unknown"]), "10.0.0.1");
        assert_eq!(client(&["for=192.0.2.1, for=_hidden, for=10.0.0.9"]), "10.0.0.9");
        let other = origin(ForwardedHeader::Forwarded, "10.0.0.1", "x-forwarded-for", &["192.0.2.1"]);
        assert_eq!(other, "10.0.0.1", "the other header may come from the client itself");
    }
}
