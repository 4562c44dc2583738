//! A mount namespace in which a test owns the paths that a kubelet expects at fixed places.
//!
//! A kubelet keeps links to container logs in `/var/log` and sockets for plugins in `/var/lib/kubelet`, whatever its
//! other directories are, and sets a few kernel parameters. In the namespace these directories, and those that the
//! deployed agent mounts, are the test's own, and the parameters already have the values that the kubelet wants, so the
//! machine's parameters stay unchanged. A kubelet does not start where it cannot read the processors' frequency, which
//! User-Mode Linux does not report: the namespace has a file with one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::has_systemd_driver;

/// The kernel parameters that a kubelet wants. The kubelet is configured to fail rather than change them.
const PARAMETERS: [(&str, u32); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// The directory of the message bus, with which runtimes reach systemd.
const DBUS: &str = "/run/dbus";

/// The directories of a node at their usual places, and those of the test that are mounted there.
const DIRECTORIES: [(&str, &str); 5] = [
    ("/run/containerd", ""),
    ("/var/lib/kubelet", KUBELET),
    ("/var/lib/vscaled", "state"),
    ("/run/vscaled", CONTROL),
    (DBUS, "dbus"),
];

/// The kubelet's directory below the one that [`Enclosure::new`] gets.
pub(crate) const KUBELET: &str = "kubelet";

/// The directory of the deployed agent's socket below the one that [`Enclosure::new`] gets.
pub(crate) const CONTROL: &str = "control";

/// A mount namespace, held open by an idle process. Dropping the value ends that process; the namespace ends with the
/// last process in it.
#[derive(Debug)]
pub(crate) struct Enclosure {
    holder: Child,
}

impl Enclosure {
    /// Makes the namespace of a node whose containerd has its socket in a directory.
    pub(crate) fn new(containerd: &Path) -> Self {
        let owned = DIRECTORIES
            .iter()
            .filter(|(place, _)| *place != DBUS || !has_systemd_driver());
        let directories = owned.map(|(place, own)| {
            let own = containerd.join(own);
            format!(
                "mkdir -p {place} '{own}'\nmount --bind '{own}' {place}\n",
                own = own.display()
            )
        });
        let binds = PARAMETERS.map(|(name, value)| {
            format!("echo {value} >\"$own/{value}\"; mount --bind \"$own/{value}\" /proc/sys/{name}\n")
        });
        let script = format!(
            "mount -t tmpfs vscaled-test /var/log
{}own=/var/log/parameters
mkdir $own
{}if ! grep -q '^cpu MHz' /proc/cpuinfo; then
  sed 's/^processor.*/&\\ncpu MHz : 1000.000/' /proc/cpuinfo >\"$own/cpuinfo\"
  mount --bind \"$own/cpuinfo\" /proc/cpuinfo
fi
echo ready
exec sleep infinity",
            directories.collect::<String>(),
            binds.concat()
        );
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let out = holder.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut said).unwrap();
        assert_eq!(said.trim(), "ready", "the view could not be made");
        Self { holder }
    }

    /// A command that runs in the namespace. The started process becomes the program, as outside of it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let holder = self.holder.id().to_string();
        command.args(["--target", &holder, "--mount", "--", program]);
        command
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        self.holder
            .kill()
            .and_then(|()| self.holder.wait())
            .map_or_else(|error| eprintln!("{:?}: {error}", self.holder), drop);
    }
}
