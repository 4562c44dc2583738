//! Certificates and keys, read from files when a connection is made.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

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
    pub(super) async fn read(&self) -> Result<ClientTlsConfig> {
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

async fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    let name = || file.display().to_string();
    let metadata = tokio::fs::metadata(file).await.with_context(name)?;
    if metadata.len() > LONGEST_FILE {
        bail!("{}: {} bytes are too many for it", file.display(), metadata.len());
    }
    let content = tokio::fs::read(file).await.with_context(name)?;
    // Without one, rustls would complain about the peer's certificate instead of about this file.
    let found = String::from_utf8_lossy(&content).lines().any(|line| {
        line.strip_prefix("-----BEGIN ")
            .is_some_and(|line| line.trim_end().trim_end_matches('-').ends_with(what))
    });
    if !found {
        bail!("{}: it holds no PEM block \"{what}\"", file.display());
    }
    Ok(content)
}
