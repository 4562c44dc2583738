//! This machine's language runtimes in containers of a private containerd, with the programs and the hooks
//! of `examples/hooks`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use vscaled::model::{Bytes, CgroupPath, MemoryLimit};

use super::agent::Agent;
use super::amounts::{Amounts, pod_manifest, vpa_manifest, with_env};
use super::containerd::{Containerd, OciRuntime};
use super::pods::{ContainerSpec, Pod, PodSpec};
use super::scratch;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/hooks");
/// The paths of this machine that its programs need, besides the JDK's configuration.
const SEEN: [&str; 7] = [
    "/usr",
    "/lib",
    "/lib64",
    "/etc/alternatives",
    "/etc/nginx",
    "/etc/passwd",
    "/etc/group",
];

/// A language runtime with one recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    HotspotG1,
    HotspotZ,
    Go,
    Node,
    Python,
    Nginx,
}

impl Language {
    #[allow(dead_code, reason = "for the benchmark")]
    pub(crate) const ALL: [Self; 6] = [
        Self::HotspotG1,
        Self::HotspotZ,
        Self::Go,
        Self::Node,
        Self::Python,
        Self::Nginx,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HotspotG1 => "hotspot-g1",
            Self::HotspotZ => "hotspot-zgc",
            Self::Go => "go",
            Self::Node => "node",
            Self::Python => "python",
            Self::Nginx => "nginx",
        }
    }

    /// The container's variables.
    pub(crate) const fn hooks(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::HotspotG1 => &[("VSCALED_BEFORE_SHRINK", r#"["/usr/bin/jcmd", "1", "GC.run"]"#)],
            Self::HotspotZ => &[
                (
                    "VSCALED_BEFORE_SHRINK",
                    r#"["/usr/bin/jcmd", "1", "VM.set_flag", "SoftMaxHeapSize", "{new:50%}"]"#,
                ),
                (
                    "VSCALED_AFTER_GROW",
                    r#"["/usr/bin/jcmd", "1", "VM.set_flag", "SoftMaxHeapSize", "{new:60%}"]"#,
                ),
            ],
            Self::Go => &[
                ("VSCALED_BEFORE_SHRINK", r#"["/app/cache", "limit", "{new:70%}"]"#),
                ("VSCALED_AFTER_GROW", r#"["/app/cache", "limit", "{new:75%}"]"#),
            ],
            Self::Node => &[("VSCALED_BEFORE_SHRINK", "signal: SIGUSR2")],
            Self::Python => &[("VSCALED_BEFORE_SHRINK", "signal: SIGUSR1")],
            Self::Nginx => &[("VSCALED_AFTER_GROW", "signal: SIGHUP")],
        }
    }

    /// The container's script. The program holds about 220 MiB within a limit of 384 MiB, then creates a file.
    const fn script(self) -> &'static str {
        match self {
            Self::HotspotG1 => {
                "mkdir -p /tmp; exec /usr/bin/java -XX:+UseG1GC -Xmx240m -XX:-G1UseAdaptiveIHOP \
                 -XX:InitiatingHeapOccupancyPercent=100 -XX:TieredStopAtLevel=1 -cp /app Cache 180"
            }
            Self::HotspotZ => {
                "mkdir -p /tmp; exec /usr/bin/java -XX:+UseZGC -Xmx280m -XX:ZUncommitDelay=1 -XX:TieredStopAtLevel=1 \
                 -cp /app Cache 190"
            }
            Self::Go => "exec /app/cache 288",
            Self::Node => "exec /usr/bin/node --expose-gc /app/cache.js 180",
            Self::Python => "exec /usr/bin/python3 /app/cache.py 200",
            Self::Nginx => {
                "touch /app/ready; mkdir -p /var/log/nginx /var/lib/nginx; exec /usr/sbin/nginx -c /app/nginx.conf"
            }
        }
    }

    /// Copies the program into a directory. The error is a sentence that names what this machine lacks.
    fn prepare(self, app: &Path) -> Result<(), String> {
        let needed: &[&str] = match self {
            Self::HotspotG1 | Self::HotspotZ => &["/usr/bin/javac", "/usr/bin/jcmd"],
            Self::Go => &["/usr/bin/go"],
            Self::Node => &["/usr/bin/node"],
            Self::Python => &["/usr/bin/python3"],
            Self::Nginx => &["/usr/sbin/nginx"],
        };
        if let Some(missing) = needed.iter().find(|program| !Path::new(program).exists()) {
            return Err(format!("{missing} is missing: scripts/setup test installs it"));
        }
        let example = |name: &str| format!("{EXAMPLES}/{name}");
        let copy = |name: &str| assert!(fs::copy(example(name), app.join(name)).is_ok());
        match self {
            Self::HotspotG1 | Self::HotspotZ => {
                run(Command::new("/usr/bin/javac")
                    .arg("-d")
                    .arg(app)
                    .arg(example("Cache.java")));
            }
            Self::Go => run(Command::new("/usr/bin/go")
                .arg("build")
                .arg("-o")
                .arg(app.join("cache"))
                .arg(example("cache.go"))
                .env("CGO_ENABLED", "0")
                .env("GOCACHE", app.join("build"))
                .env("GOFLAGS", "-mod=mod")),
            Self::Node => copy("cache.js"),
            Self::Python => copy("cache.py"),
            Self::Nginx => copy("nginx.conf"),
        }
        Ok(())
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// A pod with one container whose program holds memory, and an agent that does not run yet.
pub(crate) struct Held {
    pub(crate) agent: Agent,
    pub(crate) containerd: Containerd,
    pub(crate) pod: Pod,
    #[allow(dead_code, reason = "for the benchmark")]
    spec: PodSpec,
    #[allow(dead_code, reason = "for the benchmark")]
    attempt: u32,
    app: TempDir,
    uid: &'static str,
    amounts: Amounts,
}

impl Held {
    /// Starts the pod with these amounts. The error names the missing runtime.
    pub(crate) async fn new(language: Language, amounts: Amounts) -> Result<Self, String> {
        let app = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        language.prepare(app.path())?;
        let uid = "0a1b2c3d-0000-4000-8000-000000000071";
        let containerd = Containerd::start(OciRuntime::Runc).await;
        let etc = fs::read_dir("/etc").unwrap().map(|entry| entry.unwrap().path());
        let java = etc.filter(|path| path.to_string_lossy().starts_with("/etc/java-"));
        let seen = SEEN.iter().map(PathBuf::from).chain(java).filter(|path| path.exists());
        let mut mounts: Vec<_> = seen.map(|path| (path.display().to_string(), path, false)).collect();
        mounts.push(("/app".to_owned(), app.path().to_owned(), true));
        let container = ContainerSpec {
            name: "app",
            script: language.script(),
            resources: amounts.cri(),
            mounts,
        };
        let spec = PodSpec {
            name: "web",
            uid,
            memory_limit: MemoryLimit::Max,
            containers: vec![container],
        };
        let pod = containerd.run(&spec).await;
        let version = containerd.cgroups().version();
        for setting in amounts.settings(version).iter() {
            containerd.cgroups().put(&pod.cgroup, setting);
        }
        let kubepods = containerd.cgroups().make("kubepods");
        let agent = Agent::new(&kubepods)
            .with("--runtime-socket", containerd.socket())
            .with("--hooks", "test");
        Ok(Self {
            agent,
            containerd,
            pod,
            spec,
            attempt: 0,
            app,
            uid,
            amounts,
        })
    }

    #[allow(dead_code, reason = "for the benchmark")]
    /// Uses another agent program than the one of this build.
    pub(crate) fn run_agent(&mut self, program: &Path) {
        let none = CgroupPath::root();
        let agent = std::mem::replace(&mut self.agent, Agent::new(&none));
        self.agent = agent.wrapped(&[], &format!("shift; exec {} \"$@\"", program.display()));
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.processes().is_empty()
    }

    #[allow(dead_code, reason = "for the benchmark")]
    /// Starts the program again, as a kubelet would.
    pub(crate) async fn restart(&mut self) {
        self.attempt += 1;
        drop(fs::remove_file(self.shared("ready")));
        drop(fs::remove_file(self.shared("grow")));
        self.containerd
            .restart(&mut self.pod, &self.spec, 0, self.attempt)
            .await;
        self.begins().await;
    }

    /// Writes the pod's manifest with these hooks.
    pub(crate) fn describe(&self, hooks: &[(&str, &str)]) {
        let manifest = pod_manifest("web", self.uid, &[("app", self.amounts, None)]);
        self.agent.write("pod.yaml", &with_env(&manifest, "app", hooks));
    }

    pub(crate) fn recommend(&self, amounts: Amounts) {
        self.agent
            .write("vpa.yaml", &vpa_manifest("web", "web", &[("app", amounts)]));
    }

    /// A file that the container and the machine share.
    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.app.path().join(name)
    }

    fn app(&self) -> &CgroupPath {
        &self.pod.containers[0].cgroup
    }

    /// The container's memory limit in bytes; zero if the container is gone.
    pub(crate) fn limit(&self) -> u64 {
        if self.has_ended() {
            return 0;
        }
        let limit = self.containerd.cgroups().settings(self.app()).memory_limit();
        limit.and_then(MemoryLimit::bounded).map_or(u64::MAX, Bytes::get)
    }

    /// The container's memory use in bytes.
    pub(crate) fn usage(&self) -> u64 {
        self.containerd.cgroups().memory_usage(self.app())
    }

    /// The number of kills in the container, plus one if the container is gone.
    pub(crate) fn kills(&self) -> u64 {
        if self.has_ended() {
            return u64::MAX;
        }
        self.containerd.cgroups().oom_kills(self.app())
    }

    /// The pids in the container.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let directory = self.containerd.cgroups().directories(self.app()).remove(0);
        // The file disappears with the container.
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        pids.lines().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Waits until the program runs and the agent knows the container.
    pub(crate) async fn begins(&self) {
        self.agent
            .wait_for("the program to hold its memory", || self.shared("ready").exists())
            .await;
        let known = async || self.agent.pod("web").await?.containers[0].id.clone();
        self.agent.until("the agent to know the container", known).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
