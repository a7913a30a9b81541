//! Classifies IP addresses as public or not public.
//!
//! A webhook's URL may be chosen by someone who must not reach the network of this process: a database, a cloud's
//! metadata service, the control API. So every address that is not clearly public is rejected, unless the handler
//! permits it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// IPv4 ranges that are not public, each with its description.
const V4: [(Ipv4Net, &str); 15] = [
    (v4_net([0, 0, 0, 0], 8), "an address of this host"),
    (v4_net([10, 0, 0, 0], 8), "a private address"),
    (v4_net([100, 64, 0, 0], 10), "an address behind a carrier's NAT"),
    (v4_net([127, 0, 0, 0], 8), "a loopback address"),
    (v4_net([169, 254, 0, 0], 16), "a link-local address"),
    (v4_net([172, 16, 0, 0], 12), "a private address"),
    (v4_net([192, 0, 0, 0], 24), "an address reserved for protocols"),
    (v4_net([192, 0, 2, 0], 24), "an address for documentation"),
    (v4_net([192, 88, 99, 0], 24), "an address of 6to4 relays"),
    (v4_net([192, 168, 0, 0], 16), "a private address"),
    (v4_net([198, 18, 0, 0], 15), "an address for benchmarks"),
    (v4_net([198, 51, 100, 0], 24), "an address for documentation"),
    (v4_net([203, 0, 113, 0], 24), "an address for documentation"),
    (v4_net([224, 0, 0, 0], 4), "a multicast address"),
    (v4_net([240, 0, 0, 0], 4), "a reserved or broadcast address"),
];

/// IPv6 ranges that are not public. The first range that contains an address describes it; an address in no range is
/// public.
const V6: [(Ipv6Net, &str); 13] = [
    (v6_net([0, 0, 0, 0, 0, 0, 0, 1], 128), "a loopback address"),
    (v6_net([0, 0, 0, 0, 0, 0, 0, 0], 128), "an address of this host"),
    (v6_net([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "a link-local address"),
    (v6_net([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "a site-local address"),
    (v6_net([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "a unique local address"),
    (v6_net([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "a multicast address"),
    (v6_net([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "a Teredo address"),
    (v6_net([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "an address reserved for protocols"),
    (v6_net([0x2001, 0x0db8, 0, 0, 0, 0, 0, 0], 32), "an address for documentation"),
    (v6_net([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "an address for documentation"),
    // All public addresses start with the bits 001. The rest is reserved.
    (v6_net([0, 0, 0, 0, 0, 0, 0, 0], 3), "a reserved address"),
    (v6_net([0x4000, 0, 0, 0, 0, 0, 0, 0], 2), "a reserved address"),
    (v6_net([0x8000, 0, 0, 0, 0, 0, 0, 0], 1), "a reserved address"),
];

const fn v4_net([a, b, c, d]: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6_net([a, b, c, d, e, f, g, h]: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// Describes an address that is not public; `None` for a public one. An IPv6 address that embeds an IPv4 address is
/// classified by that.
pub(super) fn not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => embedded_v4(address).map_or_else(|| v6(address), v4),
    }
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    V4.iter().find(|(range, _)| range.contains(&address)).map(|(_, description)| *description)
}

fn v6(address: Ipv6Addr) -> Option<&'static str> {
    V6.iter().find(|(range, _)| range.contains(&address)).map(|(_, description)| *description)
}

/// Returns the IPv4 address that packets to an IPv6 address reach: mapped, compatible, NAT64 or 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // These two are addresses of IPv6 itself.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(join(high, low))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn classify(address: &str) -> Option<&'static str> {
        not_public(address.parse().unwrap())
    }

    /// The first and the last address of each range, and their neighbours.
    #[test]
    fn ranges_have_the_right_bounds() {
        let ranges = [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
        ];
        for (first, last) in ranges {
            let (first, last): (Ipv4Addr, Ipv4Addr) = (first.parse().unwrap(), last.parse().unwrap());
            assert!(v4(first).is_some() && v4(last).is_some(), "{first} to {last}");
            for beside in [u32::from(first).checked_sub(1), u32::from(last).checked_add(1)].into_iter().flatten() {
                assert_eq!(v4(Ipv4Addr::from(beside)), None, "{}", Ipv4Addr::from(beside));
            }
        }
    }

    #[test]
    fn internet_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "162.159.135.232",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00::1",
            "3ffe::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(classify(public), None, "{public}");
        }
    }

    #[test]
    fn non_public_ipv6_is_rejected_and_described() {
        for (address, what) in [
            ("::", "this host"),
            ("::1", "loopback"),
            ("fe80::1", "link-local"),
            ("febf:ffff::1", "link-local"),
            ("fec0::1", "site-local"),
            ("fc00::1", "unique local"),
            ("fdff::1", "unique local"),
            ("ff02::1", "multicast"),
            ("2001::1", "Teredo"),
            ("2001:0:ffff::", "Teredo"),
            ("2001:2::1", "protocols"),
            ("2001:20::1", "protocols"),
            ("2001:1ff:ffff::1", "protocols"),
            ("2001:db8::1", "documentation"),
            ("3fff:fff::1", "documentation"),
            ("100::1", "reserved"),
            ("64:ff9b:1::1", "reserved"),
            ("5f00::1", "reserved"),
            ("::127.0.0.1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:10.1.2.3", "private"),
            ("::ffff:169.254.169.254", "link-local"),
            ("64:ff9b::192.168.0.1", "private"),
            ("2002:7f00:1::", "loopback"),
            ("2002:c0a8:1::1", "private"),
        ] {
            let description = classify(address);
            assert!(description.is_some_and(|description| description.contains(what)), "{address}: {description:?}");
        }
    }

    proptest! {
        /// Addresses that the standard library classifies as special are never public.
        #[test]
        fn nothing_that_the_standard_library_calls_special_is_public(bits in any::<u32>(), wide in any::<u128>()) {
            let address = Ipv4Addr::from(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_broadcast() || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!special || v4(address).is_some(), "{}", address);
            // A mapped address is classified as its IPv4 address.
            prop_assert_eq!(not_public(address.to_ipv6_mapped().into()), v4(address));
            let wide = Ipv6Addr::from(wide);
            let special = wide.is_loopback() || wide.is_multicast() || wide.is_unspecified()
                || wide.is_unique_local() || wide.is_unicast_link_local();
            prop_assert!(!special || not_public(wide.into()).is_some(), "{}", wide);
            let begins_as_public = wide.octets()[0] >> 5 == 1;
            prop_assert!(begins_as_public || embedded_v4(wide).is_some() || not_public(wide.into()).is_some(), "{}", wide);
        }
    }
}
