//! Page cache stands in no limit's way, unless it is needed.

use std::fs;
use std::path::{Path, PathBuf};

use super::{ROOMY, Scene};

/// A file of the container's. Removed with this value.
struct Cached(PathBuf);

impl Cached {
    /// Has the container write 150 MiB, all of which the kernel caches for it.
    async fn by(scene: &mut Scene) -> Self {
        // On a real file system: what is in a tmpfs cannot be dropped.
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-{}", std::process::id()));
        let cached = Self(file);
        let write = format!(
            "dd if=/dev/zero of={} bs=1M count=150 conv=fsync 2>/dev/null",
            cached.0.display()
        );
        scene.spawn(&format!("{write}; exec sleep 1000"));
        let in_use = || scene.usage() > 140 << 20;
        scene.agent.wait_for("files to be cached", in_use).await;
        let written = || fs::metadata(&cached.0).is_ok_and(|file| file.len() == 150 << 20);
        scene.agent.wait_for("the file to be written", written).await;
        cached
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap_or_else(|error| eprintln!("{}: {error}", self.0.display()));
    }
}

#[tokio::test]
async fn what_is_only_cached_is_reclaimed_for_a_lower_limit() {
    let mut scene = Scene::started().await;
    let _cached = Cached::by(&mut scene).await;
    let change = scene.resize(64).await;
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert_eq!(scene.limits(), [64, 64]);
    assert!(scene.usage() <= 64 << 20);
    assert_eq!((scene.kills(), scene.is_frozen()), (0, false));
    assert!(change.stages.unwrap().prepare_us > 0);
}

#[tokio::test]
async fn a_cache_that_is_needed_again_and_again_gets_its_room_back() {
    let mut scene = Scene::started().await;
    let cached = Cached::by(&mut scene).await;
    assert_eq!(scene.resize(64).await.outcome, "Applied");
    assert_eq!(scene.limits(), [64, 64]);
    scene.spawn(&format!("while :; do cat {} >/dev/null; done", cached.0.display()));
    let raised = || scene.limits() == [ROOMY, ROOMY];
    scene.agent.wait_for("the limits to go up again", raised).await;
    let pod = scene.agent.reaches("web", "Refused").await;
    assert!(
        pod.detail.contains("are read again because they had to be dropped"),
        "{}",
        pod.detail
    );
    assert_eq!(scene.kills(), 0);
}
