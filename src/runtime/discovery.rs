//! Finds the node's runtime among the sockets where runtimes usually listen.

use std::path::{Path, PathBuf};

use super::error::{Problem, RuntimeError};
use super::{ContainerRuntime, Cri, Deadlines, RuntimeInfo};

/// Where runtimes listen, in the order in which the agent tries them: where `deploy/` mounts the directory of the runtime's
/// socket, then the defaults of containerd, CRI-O, cri-dockerd and the containerd inside k3s.
pub const WELL_KNOWN_SOCKETS: [&str; 7] = [
    "/host/runtime/containerd.sock",
    "/host/runtime/crio.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
];

/// No socket has a supported runtime behind it.
#[derive(Debug, thiserror::Error)]
#[error("found no container runtime: {}", shown_errors(tried))]
pub struct DiscoveryError {
    /// The error of each socket, in the order tried. Not empty.
    pub tried: Vec<RuntimeError>,
}

/// The errors of the sockets that exist; of the only socket also where it does not exist.
fn shown_errors(tried: &[RuntimeError]) -> String {
    let only_one = tried.len() == 1;
    let shown = tried
        .iter()
        .filter(|error| only_one || error.problem != Problem::NoSocket);
    match shown.map(ToString::to_string).collect::<Vec<_>>().join("; ") {
        none if none.is_empty() => {
            "none of the usual sockets exists (containerd's, CRI-O's, cri-dockerd's, k3s's)".to_owned()
        }
        shown => shown,
    }
}

/// The runtime at the configured socket, or else at the first well-known socket with a CRI v1 runtime behind it. A socket
/// of another program does not end the search (docker's containerd has its CRI disabled).
///
/// Errors: [`DiscoveryError`] with the error of every socket.
pub async fn discover(configured: Option<&Path>, deadlines: Deadlines) -> Result<(Cri, RuntimeInfo), DiscoveryError> {
    let sockets: Vec<PathBuf> = match configured {
        Some(socket) => vec![socket.to_owned()],
        None => WELL_KNOWN_SOCKETS.map(PathBuf::from).to_vec(),
    };
    first_runtime(&sockets, deadlines).await
}

async fn first_runtime(sockets: &[PathBuf], deadlines: Deadlines) -> Result<(Cri, RuntimeInfo), DiscoveryError> {
    let mut tried = Vec::new();
    for socket in sockets {
        let found = async {
            let cri = Cri::new(socket, deadlines)?;
            let info = cri.info().await?;
            Ok((cri, info))
        };
        match found.await {
            Ok(found) => return Ok(found),
            Err(error) => tried.push(error),
        }
    }
    Err(DiscoveryError { tried })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_sockets_are_named_together() {
        let temp = tempfile::tempdir().unwrap();
        let [absent, other, file] = ["absent.sock", "other.sock", "file.sock"].map(|name| temp.path().join(name));
        let said = async |sockets: &[PathBuf]| {
            let found = first_runtime(sockets, Deadlines::default()).await;
            found.unwrap_err().to_string()
        };
        assert_eq!(
            said(&[absent.clone(), other.clone()]).await,
            "found no container runtime: none of the usual sockets exists (containerd's, CRI-O's, cri-dockerd's, k3s's)"
        );
        let alone = said(std::slice::from_ref(&absent)).await;
        assert!(alone.contains("absent.sock: the socket does not exist"), "{alone}");
        std::fs::write(&file, "").unwrap();
        let there = said(&[absent, file, other]).await;
        assert!(there.contains("file.sock: the runtime is unavailable"), "{there}");
        assert!(
            !there.contains("absent.sock") && !there.contains("other.sock"),
            "{there}"
        );
    }
}
