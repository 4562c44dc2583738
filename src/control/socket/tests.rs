use super::super::access::Group;
use super::*;

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_new_socket_is_private() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run/vscaled/vscaled.sock");
    let socket = ControlSocket::bind(&path, Access::default()).await.unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(path.metadata().unwrap().uid(), nix::unistd::geteuid().as_raw());
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_volumes_directory_is_closed_to_others() {
    let temp = tempfile::tempdir().unwrap();
    let volume = temp.path().join("vscaled");
    let path = volume.join("vscaled.sock");
    std::fs::create_dir(&volume).unwrap();
    let group = || {
        Some(Group {
            gid: nix::unistd::getegid().as_raw(),
            name: "own".to_owned(),
        })
    };
    for (readers, expected) in [(None, 0o700), (group(), 0o755), (None, 0o700)] {
        let operators = None;
        drop(ControlSocket::bind(&path, Access { operators, readers }).await.unwrap());
        assert_eq!(mode(&volume), expected);
    }
    // A directory with other files is not the agent's alone.
    std::fs::write(volume.join("other"), "").unwrap();
    std::fs::set_permissions(&volume, Permissions::from_mode(0o755)).unwrap();
    drop(ControlSocket::bind(&path, Access::default()).await.unwrap());
    assert_eq!(mode(&volume), 0o755);
}

#[tokio::test]
async fn two_groups_need_a_file_open_to_all() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("s");
    let own = Some(Group {
        gid: nix::unistd::getegid().as_raw(),
        name: "own".to_owned(),
    });
    for (operators, readers, expected) in [
        (own.clone(), None, 0o660),
        (None, own.clone(), 0o660),
        (own.clone(), own.clone(), 0o666),
    ] {
        let socket = ControlSocket::bind(&path, Access { operators, readers }).await.unwrap();
        assert_eq!(mode(&path), expected);
        drop(socket);
    }
}

#[tokio::test]
async fn an_empty_directory_of_everybody_stays_open() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), Permissions::from_mode(0o1777)).unwrap();
    let path = temp.path().join("s");
    let socket = ControlSocket::bind(&path, Access::default()).await.unwrap();
    assert_eq!((mode(temp.path()), mode(&path)), (0o1777, 0o600));
    drop(socket);
}

fn said(refused: Result<ControlSocket>) -> String {
    refused.unwrap_err().to_string()
}

#[tokio::test]
async fn a_living_agent_keeps_its_socket() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("s");
    let _first = ControlSocket::bind(&path, Access::default()).await.unwrap();
    let second = ControlSocket::bind(&path, Access::default()).await;
    assert!(said(second).starts_with("another vscaled is running"));
    assert!(UnixStream::connect(&path).await.is_ok());
}

#[tokio::test]
async fn a_socket_without_its_lock_stays_a_strangers() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("s");
    let _stranger = UnixListener::bind(&path).unwrap();
    let second = ControlSocket::bind(&path, Access::default()).await;
    assert!(said(second).starts_with("another vscaled is running"));
}

#[tokio::test]
async fn a_dead_agents_socket_is_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _socket = ControlSocket::bind(&path, Access::default()).await.unwrap();
    assert!(UnixStream::connect(&path).await.is_ok());
}

#[tokio::test]
async fn what_is_not_a_socket_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("s");
    std::fs::write(&path, "precious").unwrap();
    let refused = ControlSocket::bind(&path, Access::default()).await;
    assert!(said(refused).ends_with("is not a socket: move it away, or listen elsewhere with --socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_directory_open_to_all_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), Permissions::from_mode(0o777)).unwrap();
    let refused = ControlSocket::bind(&temp.path().join("s"), Access::default()).await;
    assert!(said(refused).contains("has mode 0777: anybody could put a socket of their own there"));
}

#[tokio::test]
async fn a_socket_that_took_our_place_is_not_removed() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("s");
    let socket = ControlSocket::bind(&path, Access::default()).await.unwrap();
    // The successor exists before the first file goes, so that their inodes differ.
    let _successor = UnixListener::bind(temp.path().join("successor")).unwrap();
    std::fs::rename(temp.path().join("successor"), &path).unwrap();
    drop(socket);
    assert!(path.exists());
}
