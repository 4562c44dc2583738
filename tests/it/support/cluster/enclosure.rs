//! A view of the file system in which what a kubelet takes for granted is a test's own.
//!
//! A kubelet of these versions keeps the containers' logs below `/var/log`, wherever it is told to keep the rest, and sets
//! a few of the kernel's parameters. In here `/var/log` is empty and goes with the view, and the parameters have the values
//! it wants already, so that it leaves those of the machine alone. It does not start where it cannot find out how fast the
//! processors are, which User-Mode Linux does not say: in here they have a speed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// What a kubelet wants, and finds: it is told to refuse to start rather than to change them.
const PARAMETERS: [(&str, u32); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// A mount namespace, held by a process that does nothing else. Dropping it ends that process; the view goes when
/// everything that was started in it has ended.
#[derive(Debug)]
pub(crate) struct Enclosure {
    holder: Child,
}

impl Enclosure {
    pub(crate) fn new() -> Self {
        let binds = PARAMETERS.map(|(name, value)| {
            format!("echo {value} >\"$own/{value}\"; mount --bind \"$own/{value}\" /proc/sys/{name}\n")
        });
        let script = format!(
            "mount -t tmpfs vscaled-test /var/log
own=/var/log/parameters
mkdir $own
{}if ! grep -q '^cpu MHz' /proc/cpuinfo; then
  sed 's/^processor.*/&\\ncpu MHz : 1000.000/' /proc/cpuinfo >\"$own/cpuinfo\"
  mount --bind \"$own/cpuinfo\" /proc/cpuinfo
fi
echo ready
exec sleep infinity",
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

    /// A program to be started in here. It becomes the process that is started, as without.
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
