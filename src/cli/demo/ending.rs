//! The last chapters: the pod is somebody else's to try, and then vscaled stops.

use std::time::Duration;

use super::cleanup::Stage;
use super::crew;
use super::daemon::Daemon;
use super::error::DemoError;
use super::screen::{Screen, took};
use super::show;
use super::tree::Tree;

/// Leaves the pod to whoever wants to try it, until the daemon or a process ends.
pub(super) async fn go_on(stage: &mut Stage, screen: &mut Screen) -> DemoError {
    let invited = invite(stage, screen);
    if let Err(error) = invited {
        return error;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let checked = stage.daemon.as_mut().map_or(Ok(()), Daemon::check);
        if let Err(error) = checked.and_then(|()| crew::pulses(&mut stage.workers).map(drop)) {
            return error;
        }
    }
}

fn invite(stage: &Stage, screen: &mut Screen) -> Result<(), DemoError> {
    screen.chapter("Now you, in another terminal; Ctrl-C here ends it")?;
    let Some(daemon) = &stage.daemon else { return Ok(()) };
    screen.verbatim(&format!("export VSCALED_SOCKET={}", daemon.socket.display()))?;
    for command in [
        "get",
        "watch",
        "explain shop/web-0",
        "resize shop/web-0 -c cache --cpu-limit 300m",
    ] {
        screen.verbatim(&format!("vscalectl {command}"))?;
    }
    screen.verbatim(&format!("$EDITOR {}/vpa.yaml", daemon.manifests.display()))
}

/// The daemon stops, and containers do not care.
pub(super) fn stop(tree: &Tree, stage: &mut Stage, screen: &mut Screen) -> Result<(), DemoError> {
    screen.chapter("vscaled stops; what it set stays")?;
    let before = tree.read()?;
    let unexpected = |what: String| Err(DemoError::Unexpected(what));
    match stage.stop_daemon() {
        Ok(Some((status, after))) if status.success() && tree.read()? == before => {
            let (after, values) = (took(after), show::count(&before));
            screen.confirm(&format!(
                "it ended {after} after SIGTERM, with status 0; {values} are as they were"
            ))
        }
        Ok(Some((status, _))) if status.success() => unexpected("values changed while vscaled stopped".to_owned()),
        Ok(Some((status, _))) => unexpected(format!("vscaled ended with {status} after SIGTERM")),
        Ok(None) => unexpected("vscaled had ended already".to_owned()),
        Err(error) => Err(DemoError::LeftBehind(error)),
    }
}
