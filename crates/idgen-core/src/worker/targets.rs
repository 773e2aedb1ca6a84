//! Which addresses of the coordinator a try goes through, in which order, and how long each may take.

use std::time::Duration;

/// One place to connect to: an element of the lists `host`, `hostaddr` and `port` of a connection string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    pub hostaddr: String,
    pub port: String,
}

/// The three lists as libpq understands a connection string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    pub host: String,
    pub hostaddr: String,
    pub port: String,
}

impl Lists {
    /// The elements. libpq has checked that there are as many addresses as hosts, and one port or as many.
    pub fn targets(&self) -> Vec<Target> {
        let count = if self.hostaddr.is_empty() { elements(&self.host).len() } else { elements(&self.hostaddr).len() };
        let element = |list: &str, index: usize| elements(list).get(index).copied().unwrap_or_default().to_owned();
        let target = |index| Target {
            host: element(&self.host, index),
            hostaddr: element(&self.hostaddr, index),
            port: element(&self.port, if elements(&self.port).len() == 1 { 0 } else { index }),
        };
        (0..count).map(target).collect()
    }

    /// The lists that make libpq try one target only. libpq ignores an empty value, so an element that has to be empty where the
    /// connection string has something is written as a list of two: `,`. libpq then tries the target twice.
    pub fn narrowed_to(&self, target: &Target) -> Lists {
        let hides = |target: &str, list: &str| target.is_empty() && !list.is_empty();
        let is_doubled = hides(&target.host, &self.host)
            || hides(&target.hostaddr, &self.hostaddr)
            || hides(&target.port, &self.port);
        let list = |element: &str| if is_doubled { format!("{element},{element}") } else { element.to_owned() };
        Lists { host: list(&target.host), hostaddr: list(&target.hostaddr), port: list(&target.port) }
    }
}

impl Target {
    /// The host name to look up, unless the target is a socket or has an address.
    pub fn name(&self) -> Option<&str> {
        let host = self.host.as_str();
        let needs_lookup = self.hostaddr.is_empty() && !host.is_empty() && !host.starts_with(['/', '@']);
        (needs_lookup && host.parse::<std::net::IpAddr>().is_err()).then_some(host)
    }

    /// The same target at one of its addresses. The host name stays: TLS and the password file compare it.
    pub fn at(&self, hostaddr: String) -> Target {
        Target { hostaddr, ..self.clone() }
    }
}

fn elements(list: &str) -> Vec<&str> {
    list.split(',').collect()
}

/// How long the next attempt may take, of `left` of a try that may take `patience`. Without a `connect_timeout` a silent address
/// leaves time for the next ones, or the next try begins with one of those.
pub fn attempt_limit(
    patience: Duration,
    left: Duration,
    attempts_left: u32,
    connect_timeout: Option<Duration>,
) -> Duration {
    let share = (left / attempts_left.max(1)).max(patience / 3);
    connect_timeout.unwrap_or(share).min(left)
}

/// The value of `connect_timeout` in libpq's words: seconds, 0 or less for none, at least 2. An error if it is no number.
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

    fn lists(host: &str, hostaddr: &str, port: &str) -> Lists {
        Lists { host: host.to_owned(), hostaddr: hostaddr.to_owned(), port: port.to_owned() }
    }

    fn target(host: &str, hostaddr: &str, port: &str) -> Target {
        Target { host: host.to_owned(), hostaddr: hostaddr.to_owned(), port: port.to_owned() }
    }

    #[test]
    fn each_element_of_the_lists_is_a_target() {
        assert_eq!(lists("", "", "5432").targets(), [target("", "", "5432")]);
        assert_eq!(lists("a,/s", "", "5432").targets(), [target("a", "", "5432"), target("/s", "", "5432")]);
        assert_eq!(lists("a,b", "", "1,2").targets(), [target("a", "", "1"), target("b", "", "2")]);
        assert_eq!(lists("a,b", "::1,", "1,").targets(), [target("a", "::1", "1"), target("b", "", "")]);
        assert_eq!(lists("", "::1,::2", "1").targets(), [target("", "::1", "1"), target("", "::2", "1")]);
    }

    #[test]
    fn only_host_names_are_looked_up() {
        assert_eq!(target("db.example", "", "1").name(), Some("db.example"));
        for target in [
            target("", "", "1"),
            target("/tmp", "", "1"),
            target("@abstract", "", "1"),
            target("db.example", "10.0.0.1", "1"),
            target("10.0.0.1", "", "1"),
            target("fe80::1", "", "1"),
        ] {
            assert_eq!(target.name(), None, "{target:?}");
        }
    }

    #[test]
    fn a_target_replaces_the_lists() {
        let given = lists("a,/s,", "", "1,2,3");
        assert_eq!(given.narrowed_to(&target("a", "::1", "1")), lists("a", "::1", "1"));
        assert_eq!(given.narrowed_to(&target("/s", "", "2")), lists("/s", "", "2"));
        assert_eq!(given.narrowed_to(&target("", "", "3")), lists(",", ",", "3,3"));
        let given = lists("a,/s", "::1,", "1,");
        assert_eq!(given.narrowed_to(&target("/s", "", "")), lists("/s,/s", ",", ","));
        assert_eq!(lists("", "", "1").narrowed_to(&target("", "", "1")), lists("", "", "1"));
    }

    #[test]
    fn what_replaces_the_lists_has_the_target_and_nothing_else() {
        for given in [lists("a,/s,", "", "1,2,3"), lists("a,b,c", "::1,,::2", "7"), lists("", "::1,::2", "5,")] {
            for target in given.targets() {
                let narrowed = given.narrowed_to(&target).targets();
                assert!(narrowed.iter().all(|narrowed| *narrowed == target), "{given:?} {narrowed:?}");
            }
        }
    }

    #[test]
    fn a_silent_address_leaves_time_for_the_next() {
        let ms = Duration::from_millis;
        assert_eq!(attempt_limit(ms(500), ms(500), 1, None), ms(500));
        assert_eq!(attempt_limit(ms(500), ms(500), 2, None), ms(250));
        // One of many gets enough for a handshake; later tries begin with the others.
        assert_eq!(attempt_limit(ms(3000), ms(3000), 100, None), ms(1000));
        assert_eq!(attempt_limit(ms(3000), ms(400), 98, None), ms(400));
        assert_eq!(attempt_limit(ms(5000), ms(5000), 2, Some(ms(3000))), ms(3000));
        assert_eq!(attempt_limit(ms(500), ms(500), 2, Some(ms(3000))), ms(500));
    }

    #[test]
    fn connect_timeout_is_read_as_libpq_reads_it() {
        let s = |seconds| Some(Duration::from_secs(seconds));
        let read = ["", "0", "-1", "1", "2", " 10 "].map(|text| connect_timeout(text).expect("a number"));
        assert_eq!(read, [None, None, None, s(2), s(2), s(10)]);
        assert!(connect_timeout("2 s").is_err());
    }
}
