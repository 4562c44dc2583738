//! What a runtime does besides, on plain files in the place of a cgroup's.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::cgroup::Hierarchy;
use crate::model::CgroupPath;
use crate::model::objects::PodId;
use crate::runtime::{EventStream, Executed, Listing, RuntimeInfo};

/// Takes the container's swap away with every update of memory, as CRI-O does, and writes the `memory.high` that it has
/// stored, as containerd does.
#[derive(Debug)]
struct SwapTaker {
    swap: PathBuf,
    high: PathBuf,
    markers: PathBuf,
}

#[tonic::async_trait]
impl ContainerRuntime for SwapTaker {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        unreachable!()
    }

    async fn list_pods(&self) -> Result<Vec<PodId>, RuntimeError> {
        unreachable!()
    }

    async fn list_containers(&self) -> Result<Listing, RuntimeError> {
        unreachable!()
    }

    async fn stored(&self, _: &str) -> Result<Option<CriResources>, RuntimeError> {
        unreachable!()
    }

    async fn update(&self, _: &str, fields: &CriResources) -> Result<(), RuntimeError> {
        if fields.memory_limit_in_bytes.is_some() {
            let markers = fs::read_dir(&self.markers).unwrap().count();
            assert_eq!(markers, 1, "left for the next start");
            fs::write(&self.swap, "0\n").unwrap();
            fs::write(&self.high, "1048576\n").unwrap();
        }
        Ok(())
    }

    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Executed, RuntimeError> {
        unreachable!()
    }

    async fn signal(&self, _: &str, _: u32) -> Result<(), RuntimeError> {
        unreachable!()
    }

    async fn first_process(&self, _: &str) -> Result<Option<i32>, RuntimeError> {
        unreachable!()
    }

    fn events(&self) -> EventStream {
        unreachable!()
    }
}

fn cgroup(root: &TempDir, swap: &str) -> (Cgroup, SwapTaker) {
    let container = root.path().join("app");
    fs::create_dir(&container).unwrap();
    for directory in [root.path(), &container] {
        fs::write(directory.join("cgroup.controllers"), "cpu memory\n").unwrap();
    }
    let file = container.join("memory.swap.max");
    fs::write(&file, format!("{swap}\n")).unwrap();
    let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
    let cgroup = Cgroup::open(&hierarchy, &CgroupPath::new("/app").unwrap()).unwrap();
    let high = container.join("memory.high");
    fs::write(&high, "2097152\n").unwrap();
    let runtime = SwapTaker {
        swap: file,
        high,
        markers: root.path().join("frozen"),
    };
    (cgroup, runtime)
}

#[tokio::test]
async fn swap_is_kept_with_a_new_memory_limit() {
    for swap in ["104857600", "max"] {
        let root = tempfile::tempdir().unwrap();
        let (cgroup, runtime) = cgroup(&root, swap);
        let memory = CriResources {
            memory_limit_in_bytes: Some(64 << 20),
            ..CriResources::default()
        };
        let freezer = Freezer::below(root.path()).unwrap();
        update(&runtime, &freezer, Some(&cgroup), "c", &memory).await.unwrap();
        let held = |file| fs::read_to_string(file).unwrap().lines().next().map(str::to_owned);
        assert_eq!(held(&runtime.swap).as_deref(), Some(swap));
        assert_eq!(held(&runtime.high).as_deref(), Some("2097152"));
        assert_eq!(fs::read_dir(&runtime.markers).unwrap().count(), 0);
    }
}
