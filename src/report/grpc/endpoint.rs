//! Where a receiver is.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tonic::transport::Uri;

/// Room for a socket's path in `sockaddr_un` (unix(7)), without the final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The address of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `https://host:port`: TLS.
    Tls(Uri),
    /// `http://host:port`: in the clear.
    Plain(Uri),
    /// `unix:///path`: a socket on this node.
    Unix(PathBuf),
}

/// A text that is no address of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not https://host:port, http://host:port or unix:///path")]
pub struct EndpointError;

impl Endpoint {
    /// Whether what is sent can be read, and acknowledgements be forged, by others than those on this node.
    pub fn is_exposed(&self) -> bool {
        match self {
            Self::Tls(_) | Self::Unix(_) => false,
            Self::Plain(uri) => !uri.host().is_some_and(is_loopback),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("unix://") {
            let usable = Path::new(path).is_absolute() && path.len() <= MAX_SOCKET_PATH && !path.contains('\0');
            return usable.then(|| Self::Unix(path.into())).ok_or(EndpointError);
        }
        let uri: Uri = text.parse().map_err(|_| EndpointError)?;
        let only_address = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let named = uri.host().is_some_and(|host| !host.is_empty()) && uri.port_u16().is_some();
        let anonymous = uri
            .authority()
            .is_some_and(|authority| !authority.as_str().contains('@'));
        if !(only_address && named && anonymous) {
            return Err(EndpointError);
        }
        match uri.scheme_str() {
            Some("https") => Ok(Self::Tls(uri)),
            Some("http") => Ok(Self::Plain(uri)),
            Some(_) | None => Err(EndpointError),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(uri) | Self::Plain(uri) => write!(formatter, "{}", uri.to_string().trim_end_matches('/')),
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed_as_they_are_written() {
        for text in [
            "https://recommender.kube-system:8443",
            "http://127.0.0.1:9000",
            "https://[2001:db8::1]:443",
            "unix:///run/recommender.sock",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "recommender:8443",
            "https://recommender",
            "https://user:secret@recommender:8443",
            "https://recommender:8443/path",
            "ftp://recommender:21",
            "unix://relative",
            "https://:8443",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError), "{text}");
        }
    }

    #[test]
    fn only_the_network_exposes_what_is_sent_in_the_clear() {
        let exposed = |text: &str| text.parse::<Endpoint>().unwrap().is_exposed();
        assert!(exposed("http://10.0.0.1:80") && exposed("http://localhost.evil.example:80"));
        assert!(!exposed("http://localhost:80") && !exposed("http://[::1]:80") && !exposed("http://127.9.9.9:80"));
        assert!(!exposed("https://10.0.0.1:80") && !exposed("unix:///s"));
    }
}
