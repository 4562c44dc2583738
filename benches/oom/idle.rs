//! One kill at a time.

use std::time::Duration;

use crate::common::{Samples, Table};
use crate::scene::{Observer, Scene, at_the_socket, rereader, watcher};
use crate::stamps::Stamps;
use crate::victim::Victims;

/// The kernel logs ten kills in five seconds.
const PAUSE: Duration = Duration::from_millis(600);
/// An observer that has not seen a kill by then will not.
const PATIENCE: Duration = Duration::from_secs(10);
const PODS: usize = 100;

pub(crate) async fn measure(kills: usize) -> anyhow::Result<()> {
    let scene = Scene::new(PODS);
    let mut table = Table::new(
        "oom",
        format!("from the kernel's stamp of a kill, one at a time, {PODS} containers"),
    );
    let watching = watcher(&scene).await?;
    table.row(
        "the watcher has handed it to the reporter",
        times(&scene, &watching.observer, kills).await?,
    );
    drop(watching);
    let agent = scene.agent().await;
    let watching = at_the_socket(&scene, &agent).await?;
    table.row(
        "the agent has kept it and told its socket",
        times(&scene, &watching.observer, kills).await?,
    );
    drop((watching, agent));
    for (name, pause) in [
        ("reading the log again without a pause", Duration::ZERO),
        ("reading the log again each second", Duration::from_secs(1)),
    ] {
        let (watching, _) = rereader(pause);
        table.row(name, times(&scene, &watching.observer, kills).await?);
    }
    table.print()
}

async fn times(scene: &Scene, observer: &Observer, kills: usize) -> anyhow::Result<Samples> {
    let mut stamps = Stamps::new()?;
    let mut victims = Victims::in_all(scene.node.cgroups(), &scene.cgroups())?;
    let mut samples = Samples::default();
    for _ in 0..kills {
        let pid = victims.start()?;
        tokio::time::sleep(PAUSE).await;
        let learnt = async {
            loop {
                if let Some(moment) = observer.with(|seen| seen.by_process.get(&pid).copied()) {
                    return moment;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let learnt = tokio::time::timeout(PATIENCE, learnt).await;
        stamps.update()?;
        match learnt.ok().and_then(|moment| stamps.since(pid, moment)) {
            Some(time) => samples.push(time),
            None => println!("the kill of process {pid} was not learnt of"),
        }
    }
    Ok(samples)
}
