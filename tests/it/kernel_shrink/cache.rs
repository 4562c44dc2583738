//! Page cache stands in no limit's way, unless it is needed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{ROOMY, Scene};

const MEBIBYTES: u64 = 150;

/// A file that a process of the container has open and has read. Removed with this value.
pub(super) struct Cached {
    file: PathBuf,
    go_on: PathBuf,
}

impl Cached {
    /// All of the file is cached for the container. Its process reads it once more, and again, when it is told to.
    pub(super) async fn by(scene: &mut Scene) -> Self {
        // On a real file system: what is in a tmpfs cannot be dropped.
        let beside = |name| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let cached = Self {
            file: beside("cached"),
            go_on: beside("go-on"),
        };
        File::create(&cached.file).unwrap().set_len(MEBIBYTES << 20).unwrap();
        let program = format!(
            "open(F, \"<\", \"{}\") or die; my $block; while (1) {{ sysseek(F, 0, 0); \
             while (sysread(F, $block, 1 << 20)) {{}} select(undef, undef, undef, 0.01) while (! -e \"{}\") }}",
            cached.file.display(),
            cached.go_on.display(),
        );
        scene.spawn(&format!("exec perl -e '{program}'"));
        let in_use = || scene.usage() > MEBIBYTES << 20;
        scene.agent.wait_for("the file to be cached", in_use).await;
        cached
    }

    fn read_again(&self) {
        File::create(&self.go_on).map(drop).unwrap();
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        for file in [&self.file, &self.go_on].into_iter().filter(|file| file.exists()) {
            fs::remove_file(file).unwrap_or_else(|error| eprintln!("{}: {error}", file.display()));
        }
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
    cached.read_again();
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
