//! The memory that the guard may grant at this moment.
//!
//! Reads `/proc/meminfo` and the room in the pods' root, and in the cgroups around it, for each growth. Reads the memory that
//! pods have requested and do not use at most once a second, because that takes two reads for each pod.

use std::collections::BTreeMap;
use std::iter::successors;
use std::time::Duration;

use procfs::{Current, Meminfo};

use super::budgets::{Refusal, RefusalKind};
use super::predict::is_pinned;
use super::watchlist::Claim;
use crate::cgroup::{Cgroup, CgroupDir, CgroupError, Hierarchy};
use crate::model::objects::PodKey;
use crate::model::{Bytes, CgroupPath, MemoryLimit};

/// How long a sweep over all pods is valid, and the limit of all together.
const SWEPT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Account {
    root: Option<Cgroup>,
    /// The cgroups around the root: slices of systemd, or the container that a node runs in, may have limits, too.
    around: Vec<Cgroup>,
    /// The latest sample of the memory that all pods use, and how far the samples went up and down so far.
    sampled: Option<u64>,
    moved: u64,
    /// The limit of all pods together, and when it was read.
    limit: Option<(Duration, MemoryLimit)>,
    /// The request of each pod, and how much of it is not used; `None` before the first sweep with it.
    claims: BTreeMap<PodKey, (Claim, Option<u64>)>,
    swept: Option<Duration>,
}

impl Account {
    /// Replaces the requests of these pods, and the pods' root and the cgroups around it where the root is another cgroup than before.
    pub(super) fn set(&mut self, hierarchy: &Hierarchy, root: &CgroupPath, claims: BTreeMap<PodKey, Option<Claim>>) {
        let is_same = |open: &Cgroup| open.path() == root && open.outer().check().is_ok();
        if !self.root.as_ref().is_some_and(is_same) {
            (self.sampled, self.limit) = (None, None);
            let open = |path: CgroupPath| {
                let opened = Cgroup::open(hierarchy, &path);
                opened.inspect_err(|error| tracing::warn!(%error, "the pods' root is not known to the guard"))
            };
            self.root = open(root.clone()).ok();
            let around = successors(root.parent(), CgroupPath::parent);
            self.around = around.filter_map(|path| open(path).ok()).collect();
        }
        for (pod, claim) in claims {
            let known = self.claims.remove(&pod);
            self.claims.extend(claim.map(|claim| {
                let same = known.filter(|(known, _)| *known == claim);
                (pod, (claim, same.and_then(|(_, unused)| unused)))
            }));
        }
    }

    /// Samples the memory that all pods use, page cache included. Returns by how many bytes the samples went up and down since the
    /// guard started, if the kernel shows the use: where one container takes what another gives back, the use alone would not tell.
    pub(super) fn movement_of_all(&mut self) -> Option<u64> {
        let usage = self.root.as_ref()?.outer().memory_usage().ok()?.get();
        let before = self.sampled.replace(usage).unwrap_or(usage);
        self.moved = self.moved.saturating_add(usage.abs_diff(before));
        Some(self.moved)
    }

    /// Whether all pods together are at their limit: what one takes then comes out of the page cache of others, and their use does not
    /// move.
    pub(super) fn is_full(&mut self, now: Duration) -> bool {
        if self.limit.is_none_or(|(read, _)| now.saturating_sub(read) >= SWEPT) {
            let limit = self.root.as_ref().and_then(|root| root.memory_limit().ok());
            self.limit = limit.map(|limit| (now, limit));
        }
        let limit = self.limit.and_then(|(_, limit)| limit.bounded());
        limit
            .zip(self.sampled)
            .is_some_and(|(limit, used)| is_pinned(limit.get(), used))
    }

    /// The memory that the guard may grant to a container of this pod: available memory, or the room under the
    /// limits of and around all pods if that is less, without the reserve and without the memory that other pods have
    /// requested and do not use yet.
    ///
    /// Errors: the kernel does not show a value.
    pub(super) fn read(
        &mut self,
        hierarchy: &Hierarchy,
        now: Duration,
        pod: &PodKey,
        reserve: Bytes,
    ) -> Result<Bytes, Refusal> {
        // First: what other pods take meanwhile counts twice, not never.
        self.sweep(hierarchy, now);
        let meminfo = Meminfo::current().map_err(|error| format!("/proc/meminfo cannot be read: {error}"));
        let none = "/proc/meminfo has no MemAvailable: Linux 3.14 or later is needed";
        let available = meminfo.and_then(|meminfo| meminfo.mem_available.ok_or(none.to_owned()));
        let available = available.map_err(|why| Refusal::new(RefusalKind::Unreadable, why))?;
        let free = available.min(self.room_below_root()?).saturating_sub(reserve.get());
        let others = self.claims.iter().filter(|(other, _)| *other != pod);
        let unused = others.filter_map(|(_, (_, unused))| *unused);
        let claimed = unused.fold(0, u64::saturating_add);
        Ok(Bytes::new(free.saturating_sub(claimed)))
    }

    /// The room under the limit of all pods together, which the kubelet calls allocatable, and under those around it.
    fn room_below_root(&self) -> Result<u64, CgroupError> {
        let mut rooms = self.root.iter().chain(&self.around).map(room_in);
        rooms.try_fold(u64::MAX, |least, room| Ok(least.min(room?)))
    }

    /// Reads the use of all pods once in [`SWEPT`], and in between only that of pods with new claims: each growth makes a new list.
    fn sweep(&mut self, hierarchy: &Hierarchy, now: Duration) {
        let is_due = self.swept.is_none_or(|swept| now.saturating_sub(swept) >= SWEPT);
        if is_due {
            self.swept = Some(now);
        }
        let unread = self
            .claims
            .values_mut()
            .filter(|(_, unused)| is_due || unused.is_none());
        for (claim, unused) in unread {
            let used = CgroupDir::open(hierarchy, &claim.path).and_then(|dir| used(&dir));
            // A pod that cannot be read has ended, and claims nothing.
            *unused = Some(used.map_or(0, |used| claim.request.get().saturating_sub(used)));
        }
    }
}

/// The room under the limit of a cgroup. In this order, page cache that grows meanwhile counts as used: nothing is read again while a
/// container waits for its growth, because the kernel may take long for the page cache of all pods.
fn room_in(cgroup: &Cgroup) -> Result<u64, CgroupError> {
    match cgroup.memory_limit()? {
        MemoryLimit::Max => Ok(u64::MAX),
        MemoryLimit::Bytes(limit) => {
            let reclaimable = cgroup.outer().reclaimable()?;
            let used = cgroup.outer().memory_usage()?.get().saturating_sub(reclaimable);
            Ok(limit.saturating_sub(used))
        }
    }
}

/// Bytes in use without file pages, which count as available memory of the node.
fn used(dir: &CgroupDir) -> Result<u64, CgroupError> {
    Ok(dir.memory_usage()?.get().saturating_sub(dir.reclaimable()?))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// A cgroup that uses these bytes besides 800 of page cache, as plain files.
    fn cgroup(directory: &Path, used: u64) {
        fs::create_dir_all(directory).unwrap();
        let current = format!("{}\n", used + 800);
        let texts = [
            ("cgroup.controllers", "cpu memory\n"),
            ("cgroup.subtree_control", "cpu memory\n"),
            ("memory.current", current.as_str()),
            ("memory.max", "10000\n"),
            ("memory.stat", "anon 100\ninactive_file 500\nactive_file 300\n"),
        ];
        for (name, text) in texts {
            fs::write(directory.join(name), text).unwrap();
        }
    }

    #[test]
    fn what_others_requested_is_not_granted() {
        let root = tempfile::tempdir().unwrap();
        let pods = root.path().join("pods");
        for (directory, used) in [(root.path().to_owned(), 0), (pods.clone(), 2000), (pods.join("a"), 100)] {
            cgroup(&directory, used);
        }
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let path = |text: &str| CgroupPath::new(text).unwrap();
        let key = |name: &str| PodKey::new("test", name);
        let claim = |name: &str, request| {
            let (path, request) = (path(&format!("/pods/{name}")), Bytes::new(request));
            (key(name), Some(Claim { path, request }))
        };
        let mut account = Account::default();
        // The second pod has ended: it claims nothing.
        let claims = [claim("a", 3000), claim("ended", 500)].into();
        account.set(&hierarchy, &path("/pods"), claims);
        let mut granted = |name: &str, millis, reserve| {
            let now = Duration::from_millis(millis);
            account
                .read(&hierarchy, now, &key(name), Bytes::new(reserve))
                .unwrap()
                .get()
        };
        assert_eq!(granted("b", 0, 1000), 10_000 - 2000 - 1000 - 2900);
        assert_eq!(granted("a", 0, 1000), 10_000 - 2000 - 1000, "its own request");
        assert_eq!(granted("a", 0, 9000), 0, "the reserve is larger");
        cgroup(&pods.join("a"), 3000);
        assert_eq!(
            [granted("b", 999, 0), granted("b", 1000, 0)],
            [5100, 8000],
            "swept each second"
        );
    }

    #[test]
    fn what_is_taken_meanwhile_counts_as_used() {
        let root = tempfile::tempdir().unwrap();
        let pods = root.path().join("pods");
        for (name, used) in [("", 0), ("pods", 2000), ("pods/a", 100), ("pods/b", 100)] {
            cgroup(&root.path().join(name), used);
        }
        // The thread waits where it opens these, until another one has opened them.
        let [first, second] = ["a", "b"].map(|name| pods.join(name).join("memory.current"));
        for file in [&first, &second] {
            fs::remove_file(file).unwrap();
            mkfifo(file, Mode::S_IRWXU).unwrap();
        }
        let takes = std::thread::spawn({
            let pods = pods.clone();
            move || {
                let mut is_read = OpenOptions::new();
                is_read.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
                while is_read.open(&first).is_err() {
                    std::thread::yield_now();
                }
                cgroup(&pods, 4000);
                OpenOptions::new().write(true).open(second).unwrap();
            }
        });
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let path = |text: &str| CgroupPath::new(text).unwrap();
        let claim = |name: &str| {
            let (path, request) = (path(&format!("/pods/{name}")), Bytes::new(0));
            (PodKey::new("test", name), Some(Claim { path, request }))
        };
        let mut account = Account::default();
        account.set(&hierarchy, &path("/pods"), [claim("a"), claim("b")].into());
        let granted = account.read(&hierarchy, Duration::ZERO, &PodKey::new("test", "c"), Bytes::ZERO);
        takes.join().unwrap();
        assert_eq!(granted, Ok(Bytes::new(10_000 - 4000)));
    }

    #[test]
    fn page_cache_is_read_before_use() {
        let root = tempfile::tempdir().unwrap();
        let pods = root.path().join("pods");
        for (directory, used) in [(root.path(), 0), (pods.as_path(), 2000)] {
            cgroup(directory, used);
        }
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let mut account = Account::default();
        account.set(&hierarchy, &CgroupPath::new("/pods").unwrap(), BTreeMap::new());
        // Neither can be read.
        let stat = pods.join("memory.stat");
        fs::remove_file(&stat).unwrap();
        fs::create_dir(&stat).unwrap();
        fs::write(pods.join("memory.current"), "?\n").unwrap();
        assert_eq!(account.room_below_root().unwrap_err().file, stat);
    }

    #[test]
    fn a_list_has_only_new_claims_read() {
        let root = tempfile::tempdir().unwrap();
        for name in ["pods", "pods/a", "pods/b"] {
            cgroup(&root.path().join(name), 100);
        }
        cgroup(root.path(), 0);
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let path = |text: &str| CgroupPath::new(text).unwrap();
        let claim = |name: &str, request| {
            let (path, request) = (path(&format!("/pods/{name}")), Bytes::new(request));
            (PodKey::new("test", name), Some(Claim { path, request }))
        };
        let mut account = Account::default();
        let mut unused = |claims| {
            account.set(&hierarchy, &path("/pods"), claims);
            account.sweep(&hierarchy, Duration::ZERO);
            let claims = account.claims.values();
            claims.map(|(_, unused)| *unused).collect::<Vec<_>>()
        };
        assert_eq!(unused([claim("a", 3000)].into()), [Some(2900)]);
        cgroup(&root.path().join("pods/a"), 200);
        let both = [claim("a", 3000), claim("b", 1000)].into();
        assert_eq!(unused(both), [Some(2900), Some(900)], "the first was read just now");
        assert_eq!(unused([claim("a", 2000)].into()), [Some(1800), Some(900)]);
    }

    #[test]
    fn a_limit_around_all_pods_counts() {
        let root = tempfile::tempdir().unwrap();
        let slice = root.path().join("slice");
        for (directory, used) in [
            (root.path().to_owned(), 0),
            (slice.clone(), 6000),
            (slice.join("pods"), 2000),
        ] {
            cgroup(&directory, used);
        }
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let mut account = Account::default();
        account.set(&hierarchy, &CgroupPath::new("/slice/pods").unwrap(), BTreeMap::new());
        assert_eq!(account.room_below_root(), Ok(4000));
        fs::write(slice.join("memory.max"), "max\n").unwrap();
        assert_eq!(account.room_below_root(), Ok(8000));
    }

    #[test]
    fn a_pods_page_cache_counts_as_its_room() {
        // Plain files in the place of a cgroup.
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("pod");
        fs::create_dir(&pod).unwrap();
        for directory in [root.path(), &pod] {
            let texts = [
                ("cgroup.controllers", "cpu memory\n"),
                ("cgroup.subtree_control", "cpu memory\n"),
                ("memory.current", "900\n"),
                ("memory.stat", "anon 100\ninactive_file 500\nactive_file 300\n"),
            ];
            for (name, text) in texts {
                fs::write(directory.join(name), text).unwrap();
            }
        }
        let (hierarchy, path) = (
            Hierarchy::of_tree(root.path()).unwrap(),
            CgroupPath::new("/pod").unwrap(),
        );
        let claim = Claim {
            path,
            request: Bytes::new(1000),
        };
        let mut account = Account {
            claims: [(PodKey::new("test", "u"), (claim, None))].into(),
            ..Account::default()
        };
        account.sweep(&hierarchy, Duration::ZERO);
        let unused: Vec<_> = account.claims.values().map(|(_, unused)| *unused).collect();
        assert_eq!(unused, [Some(900)], "available memory has those 800 in it");

        let as_root = CgroupPath::new("/pod").unwrap();
        account.set(&hierarchy, &as_root, BTreeMap::new());
        let mut uses = |bytes: u64| {
            fs::write(pod.join("memory.current"), format!("{bytes}\n")).unwrap();
            account.movement_of_all()
        };
        assert_eq!([900, 700, 900, 900].map(&mut uses), [0, 200, 400, 400].map(Some));

        let mut is_full = |limit: &str, second: u64| {
            fs::write(pod.join("memory.max"), limit).unwrap();
            account.is_full(Duration::from_secs(second))
        };
        assert!(is_full("900\n", 1));
        assert!(is_full("max\n", 1), "a limit is read once a second");
        assert!(!is_full("max\n", 2));

        fs::remove_dir_all(&pod).unwrap();
        assert_eq!(account.movement_of_all(), None);
        fs::create_dir(&pod).unwrap();
        fs::write(pod.join("memory.current"), "700\n").unwrap();
        account.set(&hierarchy, &as_root, BTreeMap::new());
        assert_eq!(
            account.movement_of_all(),
            Some(400),
            "a root that was made again is another one"
        );
    }
}
