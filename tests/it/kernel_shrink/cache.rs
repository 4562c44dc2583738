//! Page cache stands in no limit's way.

use std::fs;
use std::path::Path;

use super::{ROOMY, Scene};

#[tokio::test]
async fn what_is_only_cached_is_reclaimed_for_a_lower_limit() {
    let mut scene = Scene::started().await;
    // On a real file system: what is in a tmpfs cannot be dropped.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-{}", std::process::id()));
    let write = format!(
        "dd if=/dev/zero of={} bs=1M count=150 conv=fsync 2>/dev/null",
        file.display()
    );
    scene.spawn(&format!("{write}; exec sleep 1000"));
    let cached = || scene.usage() > 140 << 20;
    scene.agent.wait_for("files to be cached", cached).await;

    let change = scene.resize(64).await;
    fs::remove_file(&file).unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert_eq!(scene.limits(), [64, 64]);
    assert!(scene.usage() <= 64 << 20);
    assert_eq!((scene.kills(), scene.is_frozen()), (0, false));
    assert!(change.stages.unwrap().prepare_us > 0);
    assert_ne!(ROOMY, 64);
}
