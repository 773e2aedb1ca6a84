//! The hosts and addresses of a connection string, and how long connecting to each may take.

use std::time::Duration;

/// The lists `host`, `hostaddr` and `port` of a connection string, as libpq reads them, or one element of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub host: String,
    pub hostaddr: String,
    pub port: String,
}

impl Host {
    /// The elements. libpq has checked that there are as many addresses as hosts, and one port or as many.
    pub fn hosts(&self) -> Vec<Host> {
        let count = if self.hostaddr.is_empty() { elements(&self.host).len() } else { elements(&self.hostaddr).len() };
        let element = |list: &str, index: usize| elements(list).get(index).copied().unwrap_or_default().to_owned();
        let host = |index| Host {
            host: element(&self.host, index),
            hostaddr: element(&self.hostaddr, index),
            port: element(&self.port, if elements(&self.port).len() == 1 { 0 } else { index }),
        };
        (0..count).map(host).collect()
    }

    /// The lists that make libpq try one host only. libpq ignores an empty value. So if an element is empty and the
    /// connection string has a value there, it is written as a list of two, `,`, and libpq tries the host twice.
    pub fn narrowed_to(&self, only: &Host) -> Host {
        let hides = |element: &str, list: &str| element.is_empty() && !list.is_empty();
        let is_doubled =
            hides(&only.host, &self.host) || hides(&only.hostaddr, &self.hostaddr) || hides(&only.port, &self.port);
        let list = |element: &str| if is_doubled { format!("{element},{element}") } else { element.to_owned() };
        Host { host: list(&only.host), hostaddr: list(&only.hostaddr), port: list(&only.port) }
    }

    /// The host name to look up, unless the host is a socket or has an address.
    pub fn name(&self) -> Option<&str> {
        let host = self.host.as_str();
        let needs_lookup = self.hostaddr.is_empty() && !host.is_empty() && !host.starts_with(['/', '@']);
        (needs_lookup && host.parse::<std::net::IpAddr>().is_err()).then_some(host)
    }

    /// The host at one of its addresses. The host name stays: TLS and the password file compare it.
    pub fn at(&self, hostaddr: String) -> Host {
        Host { hostaddr, ..self.clone() }
    }
}

fn elements(list: &str) -> Vec<&str> {
    list.split(',').collect()
}

/// Time limit for one address. `total` is the limit for all of them, `left` what remains of it. Without a `connect_timeout` a
/// silent address leaves time for the next ones, or the next try begins with one of those.
pub fn attempt_limit(
    total: Duration,
    left: Duration,
    attempts_left: u32,
    connect_timeout: Option<Duration>,
) -> Duration {
    let share = (left / attempts_left.max(1)).max(total / 3);
    connect_timeout.unwrap_or(share).min(left)
}

/// Reads `connect_timeout` as libpq does: seconds, at least 2; 0 or less for no timeout.
pub fn connect_timeout(text: &str) -> Result<Option<Duration>, std::num::ParseIntError> {
    if text.is_empty() {
        return Ok(None);
    }
    let seconds: i32 = text.trim().parse()?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.max(2) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_at(host: &str, hostaddr: &str, port: &str) -> Host {
        Host { host: host.to_owned(), hostaddr: hostaddr.to_owned(), port: port.to_owned() }
    }

    #[test]
    fn each_element_of_the_lists_is_a_host() {
        assert_eq!(host_at("", "", "5432").hosts(), [host_at("", "", "5432")]);
        assert_eq!(host_at("a,/s", "", "5432").hosts(), [host_at("a", "", "5432"), host_at("/s", "", "5432")]);
        assert_eq!(host_at("a,b", "", "1,2").hosts(), [host_at("a", "", "1"), host_at("b", "", "2")]);
        assert_eq!(host_at("a,b", "::1,", "1,").hosts(), [host_at("a", "::1", "1"), host_at("b", "", "")]);
        assert_eq!(host_at("", "::1,::2", "1").hosts(), [host_at("", "::1", "1"), host_at("", "::2", "1")]);
    }

    #[test]
    fn lookup_is_needed_for_host_names_only() {
        assert_eq!(host_at("db.example", "", "1").name(), Some("db.example"));
        for host in [
            host_at("", "", "1"),
            host_at("/tmp", "", "1"),
            host_at("@abstract", "", "1"),
            host_at("db.example", "10.0.0.1", "1"),
            host_at("10.0.0.1", "", "1"),
            host_at("fe80::1", "", "1"),
        ] {
            assert_eq!(host.name(), None, "{host:?}");
        }
    }

    #[test]
    fn host_at_one_of_its_addresses_keeps_its_name_and_port() {
        assert_eq!(host_at("a", "", "1").at("::1".to_owned()), host_at("a", "::1", "1"));
    }

    #[test]
    fn narrowed_lists_name_one_host() {
        let given = host_at("a,/s,", "", "1,2,3");
        assert_eq!(given.narrowed_to(&host_at("a", "::1", "1")), host_at("a", "::1", "1"));
        assert_eq!(given.narrowed_to(&host_at("/s", "", "2")), host_at("/s", "", "2"));
        assert_eq!(given.narrowed_to(&host_at("", "", "3")), host_at(",", ",", "3,3"));
        let given = host_at("a,/s", "::1,", "1,");
        assert_eq!(given.narrowed_to(&host_at("/s", "", "")), host_at("/s,/s", ",", ","));
        assert_eq!(host_at("", "", "1").narrowed_to(&host_at("", "", "1")), host_at("", "", "1"));
    }

    #[test]
    fn narrowed_lists_read_back_as_that_host() {
        for given in [host_at("a,/s,", "", "1,2,3"), host_at("a,b,c", "::1,,::2", "7"), host_at("", "::1,::2", "5,")] {
            for host in given.hosts() {
                let narrowed = given.narrowed_to(&host).hosts();
                assert!(narrowed.iter().all(|narrowed| *narrowed == host), "{given:?} {narrowed:?}");
            }
        }
    }

    #[test]
    fn attempt_on_a_silent_address_leaves_time_for_the_next() {
        let ms = Duration::from_millis;
        assert_eq!(attempt_limit(ms(500), ms(500), 1, None), ms(500));
        assert_eq!(attempt_limit(ms(500), ms(500), 2, None), ms(250));
        // One of many hosts gets enough time for a handshake; later tries begin with the others.
        assert_eq!(attempt_limit(ms(3000), ms(3000), 100, None), ms(1000));
        assert_eq!(attempt_limit(ms(3000), ms(400), 98, None), ms(400));
        assert_eq!(attempt_limit(ms(5000), ms(5000), 2, Some(ms(3000))), ms(3000));
        assert_eq!(attempt_limit(ms(500), ms(500), 2, Some(ms(3000))), ms(500));
    }

    #[test]
    fn connect_timeout_reads_as_in_libpq() {
        let s = |seconds| Some(Duration::from_secs(seconds));
        let read = ["", "0", "-1", "1", "2", " 10 "].map(|text| connect_timeout(text).expect("a number"));
        assert_eq!(read, [None, None, None, s(2), s(2), s(10)]);
        assert!(connect_timeout("2 s").is_err());
    }
}
