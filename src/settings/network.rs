//! IP networks.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

/// An IP network, such as `10.0.0.0/8`, or a single address. An IPv4 address that is mapped into IPv6 is the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNetwork(IpNet);

/// A text is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpNetworkError {
    /// It does not start with an IP address.
    #[error("has {0:?}, which is not an IP address")]
    Address(String),
    /// The part after the `/` is not a valid prefix length.
    #[error("has {0:?}, but the part after the / must be a number of bits, at most 32 or 128")]
    Prefix(String),
    /// The address has bits set after the prefix.
    #[error("has {given:?}, which is a single address of a network; write {network} for the network")]
    HostBitsSet {
        /// The text.
        given: String,
        /// The network that was probably meant.
        network: IpNetwork,
    },
}

impl IpNetwork {
    /// Whether it contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns the network of an address with this prefix length, or the longest one possible.
    #[must_use]
    pub fn of(address: IpAddr, prefix: u8) -> Self {
        let address = IpNet::from(address.to_canonical());
        Self(IpNet::new(address.addr(), prefix).unwrap_or(address).trunc())
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| IpNetworkError::Address(text.to_owned()))?;
        let Some(prefix) = prefix else { return Ok(Self::of(address, u8::MAX)) };
        let given = prefix.parse().ok().and_then(|prefix| IpNet::new(address, prefix).ok());
        let given = given.ok_or_else(|| IpNetworkError::Prefix(text.to_owned()))?;
        let network = Self::of(address, given.prefix_len());
        if network.0 == given {
            Ok(network)
        } else {
            Err(IpNetworkError::HostBitsSet { given: text.to_owned(), network })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<IpNetwork>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        for (network, address) in [
            ("10.0.0.0/8", "10.255.1.2"),
            ("0.0.0.0/0", "203.0.113.9"),
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7", "::ffff:192.0.2.7"),
            ("fd00::/8", "fd12::1"),
            ("::/0", "2001:db8::1"),
            ("::1", "::1"),
        ] {
            assert!(contains(network, address), "{address} is in {network}");
        }
        for (network, address) in [
            ("10.0.0.0/8", "11.0.0.0"),
            ("192.0.2.0/25", "192.0.2.128"),
            ("192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "::1"),
            ("::/0", "10.0.0.1"),
            ("fd00::/8", "fe00::1"),
        ] {
            assert!(!contains(network, address), "{address} is not in {network}");
        }
    }

    #[test]
    fn invalid_networks_suggest_a_fix() {
        for (text, message) in [
            ("localhost", "not an IP address"),
            ("10.0.0.0/33", "a number of bits"),
            ("10.0.0.0/", "a number of bits"),
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("fd00::1/64", "write fd00::/64"),
        ] {
            let error = text.parse::<IpNetwork>().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        for text in ["10.0.0.0/8", "::1", "192.0.2.7"] {
            assert_eq!(text.parse::<IpNetwork>().unwrap().to_string(), text);
        }
    }
}
