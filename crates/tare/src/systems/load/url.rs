//! URLs of HTTP.

use std::fmt;
use std::str::FromStr;

/// A URL with the scheme http or https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as they are in the URL.
    pub(super) authority: String,
    /// Path and query, from `/` on.
    pub(super) path: String,
}

impl Url {
    /// Scheme, host and port, which distinguish servers.
    pub(super) fn server(&self) -> (bool, &str, u16) {
        (self.is_tls, &self.host, self.port)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let expected = || format!("found {text:?}, expected http://HOST[:PORT]/PATH, or https");
        let (scheme, rest) = text.split_once("://").ok_or_else(expected)?;
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(expected()),
        };
        let rest = rest.split('#').next().unwrap_or(rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let default = if is_tls { 443 } else { 80 };
        let (host, port) =
            super::value::host_and_port(authority, default).map_err(|_| expected())?;
        if authority.contains('@') {
            return Err(expected());
        }
        Ok(Url {
            is_tls,
            host: host.into(),
            port,
            authority: authority.into(),
            path: match path.starts_with('/') {
                true => path.into(),
                false => format!("/{path}"),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let url: Url = "https://localhost:8443/a/b?c=d#e".parse().unwrap();
        assert_eq!(url.server(), (true, "localhost", 8443));
        assert_eq!(
            (url.authority.as_str(), url.path.as_str()),
            ("localhost:8443", "/a/b?c=d")
        );
        assert_eq!(url.to_string(), "https://localhost:8443/a/b?c=d");
        let plain: Url = "http://[::1]".parse().unwrap();
        assert_eq!(plain.server(), (false, "::1", 80));
        assert_eq!(plain.path, "/");
        let query: Url = "http://h?x".parse().unwrap();
        assert_eq!(query.path, "/?x");
        for wrong in [
            "",
            "h",
            "ftp://h/",
            "http://",
            "http://:80/",
            "http://u@h/",
            "http://h:0/",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }
}
