//! Finds the node's runtime among the sockets where runtimes usually listen.

use std::path::{Path, PathBuf};

use super::error::{Problem, RuntimeError};
use super::{ContainerRuntime, Cri, Deadlines, RuntimeInfo};

/// Where runtimes listen, in the order in which the agent tries them: where `deploy/` mounts the directory of the runtime's
/// socket, then the defaults of containerd, CRI-O, cri-dockerd and the containerd inside k3s, k0s and MicroK8s.
pub const WELL_KNOWN_SOCKETS: [&str; 9] = [
    "/host/runtime/containerd.sock",
    "/host/runtime/crio.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
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
            "none of the usual sockets exists (containerd's, CRI-O's, cri-dockerd's, k3s's, k0s's, MicroK8s's)"
                .to_owned()
        }
        shown => shown,
    }
}

/// The runtime at the configured socket, or else at the first well-known socket with a CRI v1 runtime that runs containers of
/// pods; at the first with any CRI v1 runtime, if none runs one. A node can have several: docker's containerd, or the
/// distribution's, beside the one inside k3s. A socket of another program does not end the search (docker's containerd has its CRI
/// disabled).
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
    let (mut without_pods, mut tried) = (None, Vec::new());
    for socket in sockets {
        let found = async {
            let cri = Cri::new(socket, deadlines)?;
            let info = cri.info().await?;
            Ok((cri, info))
        };
        match found.await {
            Ok((cri, info)) => {
                if sockets.len() == 1 || cri.runs_pods().await {
                    return Ok((cri, info));
                }
                without_pods.get_or_insert((cri, info));
            }
            Err(error) => tried.push(error),
        }
    }
    without_pods.ok_or(DiscoveryError { tried })
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tokio_util::task::AbortOnDropHandle;
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::runtime::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
    use crate::runtime::proto::{
        Container, ListContainersRequest, ListContainersResponse, VersionRequest, VersionResponse,
    };

    /// A containerd that runs these containers.
    #[derive(Debug, Clone)]
    struct Containerd(Vec<Container>);

    #[tonic::async_trait]
    impl RuntimeService for Containerd {
        async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
            Ok(Response::new(VersionResponse {
                runtime_name: "containerd".to_owned(),
                ..VersionResponse::default()
            }))
        }

        async fn list_containers(
            &self,
            _: Request<ListContainersRequest>,
        ) -> Result<Response<ListContainersResponse>, Status> {
            let containers = self.0.clone();
            Ok(Response::new(ListContainersResponse { containers }))
        }
    }

    /// Serves the runtime at a socket until the value is dropped.
    fn serve(socket: &Path, runtime: Containerd) -> AbortOnDropHandle<()> {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let router = Server::builder().add_service(RuntimeServiceServer::new(runtime));
        AbortOnDropHandle::new(tokio::spawn(async move {
            router.serve_with_incoming(incoming).await.unwrap();
        }))
    }

    #[tokio::test]
    async fn of_several_runtimes_the_one_with_pods_counts() {
        let temp = tempfile::tempdir().unwrap();
        let [idle, used] = ["idle.sock", "used.sock"].map(|name| temp.path().join(name));
        let labels = ["pod.name", "pod.namespace", "pod.uid", "container.name"];
        let container = Container {
            id: "a".repeat(64),
            labels: labels
                .map(|label| (format!("io.kubernetes.{label}"), "x".to_owned()))
                .into(),
            ..Container::default()
        };
        let _servers = [
            serve(&idle, Containerd(Vec::new())),
            serve(&used, Containerd(vec![container])),
        ];
        let socket = async |sockets: &[PathBuf]| {
            let (cri, _) = first_runtime(sockets, Deadlines::default()).await.unwrap();
            cri.socket().to_owned()
        };
        assert_eq!(socket(&[idle.clone(), used.clone()]).await, used);
        let absent = temp.path().join("absent.sock");
        assert_eq!(socket(&[absent, idle.clone()]).await, idle);
    }

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
            "found no container runtime: none of the usual sockets exists (containerd's, CRI-O's, cri-dockerd's, k3s's, k0s's, MicroK8s's)"
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
