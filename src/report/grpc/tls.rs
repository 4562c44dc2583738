//! Certificates and keys, read from files when a connection is made.

use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::error::GrpcError;

/// A file of certificates is not near this.
const LONGEST_FILE: u64 = 1 << 20;

/// How the receiver's certificate is judged, and which one the agent shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whose signatures are believed, in PEM; none believes the system's authorities.
    pub ca: Option<PathBuf>,
    /// The agent's own certificate and its key, in PEM, for receivers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name the receiver's certificate must have, if not the one in the address.
    pub server_name: Option<String>,
}

impl TlsFiles {
    /// What is in the files now.
    pub(super) async fn read(&self) -> Result<ClientTlsConfig, GrpcError> {
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca {
            Some(file) => tls.ca_certificate(Certificate::from_pem(read(file, "CERTIFICATE").await?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            let certificate = read(certificate, "CERTIFICATE").await?;
            tls = tls.identity(Identity::from_pem(certificate, read(key, "PRIVATE KEY").await?));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        Ok(tls)
    }
}

async fn read(file: &Path, what: &str) -> Result<Vec<u8>, GrpcError> {
    let unusable = |reason: String| GrpcError::File {
        file: file.to_owned(),
        reason,
    };
    let metadata = tokio::fs::metadata(file)
        .await
        .map_err(|error| unusable(error.to_string()))?;
    if metadata.len() > LONGEST_FILE {
        return Err(unusable(format!("{} bytes are too many for it", metadata.len())));
    }
    let content = tokio::fs::read(file)
        .await
        .map_err(|error| unusable(error.to_string()))?;
    // Without one, rustls would complain about the peer's certificate instead of about this file.
    let found = String::from_utf8_lossy(&content).lines().any(|line| {
        line.strip_prefix("-----BEGIN ")
            .is_some_and(|line| line.trim_end().trim_end_matches('-').ends_with(what))
    });
    if found {
        Ok(content)
    } else {
        Err(unusable(format!("it holds no PEM block \"{what}\"")))
    }
}
