//! A cgroup's path below its hierarchy's mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A cgroup's path as the kernel prints it in `/proc/<pid>/cgroup`: it begins with `/`, is relative to the mount, and has no
/// `.` or `..`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct CgroupPath(Arc<str>);

/// A text is not the path of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cgroup path: it must begin with / and hold no empty, `.` or `..` component")]
pub struct InvalidPath(pub String);

impl CgroupPath {
    /// Checks a path. `/` is the root cgroup. No other path may end in a slash.
    ///
    /// Errors: [`InvalidPath`] quotes the text.
    pub fn new(text: &str) -> Result<Self, InvalidPath> {
        let well_formed =
            |segment: &str| !segment.is_empty() && segment != "." && segment != ".." && !segment.contains('\0');
        match text.strip_prefix('/') {
            Some("") => Ok(Self::root()),
            Some(rest) if rest.split('/').all(well_formed) => Ok(Self(text.into())),
            Some(_) | None => Err(InvalidPath(text.to_owned())),
        }
    }

    /// The root cgroup, `/` in every hierarchy.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// The text, beginning with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, the outermost first. The root has none.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|segment| !segment.is_empty())
    }

    /// The last component. The root has none.
    pub fn name(&self) -> Option<&str> {
        self.segments().next_back()
    }

    /// The cgroup that contains this one. The root has none.
    pub fn parent(&self) -> Option<Self> {
        match self.0.rsplit_once('/')? {
            (_, "") => None,
            ("", _) => Some(Self::root()),
            (parent, _) => Some(Self(parent.into())),
        }
    }

    /// The cgroup of that name in this one.
    ///
    /// Errors: [`InvalidPath`] if the name is not one component.
    pub fn child(&self, name: &str) -> Result<Self, InvalidPath> {
        if name.contains('/') {
            return Err(InvalidPath(name.to_owned()));
        }
        let parent = self.0.strip_suffix('/').unwrap_or(&self.0);
        Self::new(&format!("{parent}/{name}"))
    }

    /// The part of this path after `root`, without a leading slash. `None` if this is neither `root` nor below it.
    pub fn below(&self, root: &Self) -> Option<&str> {
        let rest = self.0.strip_prefix(root.0.strip_suffix('/').unwrap_or(&root.0))?;
        rest.strip_prefix('/').or(rest.is_empty().then_some(""))
    }

    /// The directory of this cgroup below a mount.
    pub fn under(&self, mount: &Path) -> PathBuf {
        mount.join(self.0.trim_start_matches('/'))
    }
}

impl TryFrom<String> for CgroupPath {
    type Error = InvalidPath;

    fn try_from(text: String) -> Result<Self, InvalidPath> {
        Self::new(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn relative_paths_and_steps_up_are_refused() {
        for bad in ["", "kubepods", "/a//b", "/a/", "/a/../b", "/./a", "/..", "//", "/a\0b"] {
            assert_eq!(CgroupPath::new(bad), Err(InvalidPath(bad.to_owned())));
        }
        assert_eq!(CgroupPath::new("/").unwrap(), CgroupPath::root());
        assert_eq!(CgroupPath::root().parent(), None);
        assert_eq!(CgroupPath::root().name(), None);
    }

    #[test]
    fn paths_are_below_their_ancestors() {
        let path = CgroupPath::new("/kubepods/burstable").unwrap();
        assert_eq!(path.below(&CgroupPath::root()), Some("kubepods/burstable"));
        assert_eq!(path.below(&CgroupPath::new("/kubepods").unwrap()), Some("burstable"));
        assert_eq!(path.below(&path), Some(""));
        assert_eq!(path.below(&CgroupPath::new("/kube").unwrap()), None);
        assert_eq!(
            path.under(Path::new("/sys/fs/cgroup")),
            Path::new("/sys/fs/cgroup/kubepods/burstable")
        );
        assert_eq!(CgroupPath::root().under(Path::new("/m")), Path::new("/m/"));
    }

    proptest! {
        #[test]
        fn a_child_is_below_its_parent(names in proptest::collection::vec("[a-z0-9_.:-]*[a-z0-9]", 1..6)) {
            let mut path = CgroupPath::root();
            for name in &names {
                let child = path.child(name).unwrap();
                prop_assert_eq!(child.parent(), Some(path.clone()));
                prop_assert_eq!(child.name(), Some(name.as_str()));
                prop_assert_eq!(child.below(&path), Some(name.as_str()));
                path = child;
            }
            prop_assert_eq!(path.segments().collect::<Vec<_>>(), names);
            prop_assert_eq!(CgroupPath::new(path.as_str()), Ok(path));
        }
    }
}
