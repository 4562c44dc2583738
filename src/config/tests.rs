//! Real files, and clap with the variables it would read in the agent replaced by ones every process has.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Args, Command, FromArgMatches};
use jiff::SignedDuration;
use tempfile::TempDir;

use super::*;
use crate::model::objects::UpdateMode;
use std::time::Duration;

/// The arguments of `vscaled run`, reading no environment.
fn command() -> Command {
    RunArguments::augment_args(Command::new("run")).mut_args(|arg| arg.env(Resettable::Reset))
}

fn sources(command: Command, arguments: &[&str]) -> RunArguments {
    let matches = command.try_get_matches_from([&["run"], arguments].concat()).unwrap();
    RunArguments::from_arg_matches(&matches).unwrap()
}

pub(crate) fn load(arguments: &[&str]) -> Result<Config> {
    Config::load(&sources(command(), arguments))
}

pub(super) fn refusal(arguments: &[&str]) -> String {
    load(arguments).unwrap_err().to_string()
}

fn file(dir: &TempDir, keys: &str) -> String {
    let path = dir.path().join("config.yaml");
    fs::write(&path, format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{keys}")).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A variable that every process has.
const PRESENT: &str = "PATH";

fn present() -> String {
    std::env::var(PRESENT).unwrap()
}

#[test]
fn the_documented_defaults_hold() {
    let config = load(&[]).unwrap();
    assert_eq!(config.manifests, Path::new("/etc/vscaled/manifests"));
    assert_eq!(config.http_address, Some(([127, 0, 0, 1], 9464).into()));
    assert_eq!(config.runtime_socket, PathSetting::Auto);
    assert_eq!((config.kubepods.as_ref(), config.cgroup_driver), (None, None));
    assert_eq!(config.sweep_interval, Duration::from_secs(30));
    assert_eq!(config.workers, 4);
    assert!(!config.observe_only);
    assert_eq!(config.decide_options(), decide::Options::default());
    assert_eq!(config.deadlines(), Deadlines::default());
}

#[test]
fn the_shipped_example_is_valid() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples/agent.yaml");
    assert!(load(&["--config", example]).unwrap().observe_only);
}

#[test]
fn flags_precede_variables_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "recommender: from-file\nworkers: 8\n");
    let environment = || command().mut_arg("recommender", |arg| arg.env(PRESENT));

    let flag = sources(environment(), &["--config", &path, "--recommender=from-flag"]);
    assert_eq!(Config::load(&flag).unwrap().recommender.as_deref(), Some("from-flag"));
    let variable = Config::load(&sources(environment(), &["--config", &path])).unwrap();
    assert_eq!(variable.recommender.as_deref(), Some(present().as_str()));
    assert_eq!(variable.workers, 8);
    let only_file = load(&["--config", &path]).unwrap();
    assert_eq!(only_file.recommender.as_deref(), Some("from-file"));
}

#[test]
fn a_refused_value_names_key_place_and_range() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "sweepInterval: 2h\n");
    assert_eq!(
        refusal(&["--workers=65"]),
        r#"workers: "65" from the flag --workers is refused: it must be a number from 1 to 64"#
    );
    assert_eq!(
        refusal(&["--config", &path]),
        format!(r#"sweepInterval: "2h" from {path}:3 is refused: it must be a duration from 1s to 1h"#)
    );
    assert_eq!(
        refusal(&["--guard-reserve=2.5%"]),
        "guardReserve: \"2.5%\" from the flag --guard-reserve is refused: it must be an amount of memory such as 512Mi, or a \
         whole percentage from 0% to 100%"
    );
    // Stands for VSCALED_WORKERS, which no test may set.
    let variable = sources(command().mut_arg("workers", |arg| arg.env(PRESENT)), &[]);
    assert_eq!(
        Config::load(&variable).unwrap_err().to_string(),
        format!(
            "workers: {:?} from the environment variable VSCALED_WORKERS is refused: it must be a number from 1 to 64",
            present()
        )
    );
}

#[test]
fn every_refused_key_and_value_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "worker: 3\nsweepInterval: 2h\nactOn: {a: 1}\nguard: {a: 1}\n");
    let refused = refusal(&["--config", &path]);
    let lines: Vec<_> = refused.lines().collect();
    assert_eq!(lines.len(), 3, "{refused}");
    assert!(
        lines[0].starts_with(&format!("{path}: line 3: unknown field `worker`")),
        "{refused}"
    );
    assert!(lines[1].starts_with("line 5: unknown field `actOn`"), "{refused}");
    assert!(lines[2].starts_with("line 6: guard: the value must be"), "{refused}");
    file(&dir, "sweepInterval: 2h\n");
    assert_eq!(
        refusal(&["--config", &path, "--workers=65"]),
        format!(
            "sweepInterval: \"2h\" from {path}:3 is refused: it must be a duration from 1s to 1h\n\
             workers: \"65\" from the flag --workers is refused: it must be a number from 1 to 64"
        )
    );
}

#[test]
fn every_key_refuses_nonsense_and_names_itself() {
    for key in KEYS.iter() {
        // Any text names a recommender.
        if key.name == "recommender" {
            continue;
        }
        let argument = format!("{}=:no such, \u{e9}", key.flag());
        assert!(refusal(&[&argument]).starts_with(&format!("{}: ", key.name)), "{key:?}");
    }
}

#[test]
fn impossible_values_are_refused() {
    for argument in [
        "--update-threshold=NaN",
        "--update-threshold=-0.1",
        "--update-threshold=1.5",
        "--workers=0",
        "--workers=-1",
        "--workers=",
        "--runtime-timeout=0s",
        "--quick-oom-threshold=-1m",
        "--sweep-interval=30",
        "--manifests=relative/path",
        "--kubepods=/kubelet/../kubepods",
        "--http-address=localhost",
        "--source=kubernetes",
        "--kubelet-version=2.0",
        "--update-modes=Off",
        "--log-level=",
        "--log-level=inof",
        "--node-name=Node_1",
        "--report-grpc-endpoint=recommender:8443",
        "--report-grpc-ca-file=ca.crt",
        "--report-grpc-max-backoff=2h",
        "--spool-max-bytes=1Gi",
        "--spool-max-reports=0",
    ] {
        assert!(refusal(&[argument]).contains("it must be"), "{argument}");
    }
    let name = refusal(&["--node-name=node-.1"]);
    assert!(
        name.ends_with("not first or last, `-`, in parts joined by `.`"),
        "{name}"
    );
    let unnamed = refusal(&["--source=kubernetes"]);
    assert!(
        unnamed.ends_with("must be the name of this node's own object with this source"),
        "{unnamed}"
    );
    let long = format!("--socket=/{}", "x".repeat(107));
    assert!(refusal(&[&long]).ends_with("an absolute path of at most 107 bytes"));
}

#[test]
fn empty_and_auto_mean_none() {
    let config = load(&[
        "--http-address=",
        "--update-modes=",
        "--runtime-socket=none",
        "--observe-only",
    ])
    .unwrap();
    assert_eq!(config.http_address, None);
    assert_eq!(config.update_modes, []);
    assert_eq!(config.runtime_socket, PathSetting::None);
    assert!(config.observe_only);
    let socket = load(&["--runtime-socket=unix:///run/crio/crio.sock"])
        .unwrap()
        .runtime_socket;
    assert_eq!(socket, PathSetting::Path("/run/crio/crio.sock".into()));
}

#[test]
fn a_file_of_another_shape_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "worker: 3\n");
    let unknown = refusal(&["--config", &path]);
    assert!(
        unknown.contains("line 3: unknown field `worker`, expected one of `nodeName`"),
        "{unknown}"
    );
    assert!(unknown.ends_with("; did you mean `workers`?"), "{unknown}");
    file(&dir, "workers: {a: 1}\n");
    let wrong_type = refusal(&["--config", &path]);
    assert!(wrong_type.contains("workers: the value must be a text"), "{wrong_type}");
    fs::write(&path, "apiVersion: v1\nkind: Pod\n").unwrap();
    let kind = refusal(&["--config", &path]);
    assert!(
        kind.ends_with(r#"apiVersion: "v1" is refused: it must be vscaled.io/v1"#),
        "{kind}"
    );
    fs::write(&path, "workers: [\n").unwrap();
    assert!(refusal(&["--config", &path]).starts_with(&path));
    fs::write(&path, "").unwrap();
    assert!(refusal(&["--config", &path]).contains("a mapping with apiVersion"));
    fs::remove_file(&path).unwrap();
    assert!(refusal(&["--config", &path]).contains("cannot be read: No such file"));
}

#[test]
fn a_printed_configuration_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("printed.yaml");
    let path = path.to_str().unwrap();
    for arguments in [
        &[][..],
        &[
            "--node-name=n1",
            "--http-address=",
            "--kubepods=/kubelet/kubepods",
            "--cgroup-driver=systemd",
            "--weight-formula=quadratic",
            "--kubelet-version=1.34",
            "--update-modes=InPlace,Recreate",
            "--in-place-lifetime-threshold=1h30m",
            "--runtime-timeout=1500ms",
            "--update-threshold=0.25",
            "--observe-only=true",
            "--report-grpc-endpoint=https://recommender.kube-system:8443",
            "--report-grpc-ca-file=/etc/vscaled/ca.crt",
            "--report-grpc-cert-file=/etc/vscaled/tls.crt",
            "--report-grpc-key-file=/etc/vscaled/tls.key",
            "--report-grpc-server-name=recommender",
            "--spool-max-bytes=32Mi",
        ],
    ] {
        let printed = load(arguments).unwrap().to_json().unwrap();
        fs::write(path, &printed).unwrap();
        assert_eq!(load(&["--config", path]).unwrap().to_json().unwrap(), printed);
    }
}

#[test]
fn a_reload_names_keys_that_need_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "logLevel: info\nworkers: 2\nsweepInterval: 60s\n");
    let sources = sources(command(), &["--config", &path]);
    let config = Config::load(&sources).unwrap();

    file(&dir, "logLevel: debug\nworkers: 3\nsweepInterval: 1m\n");
    let reload = config.reload(&sources).unwrap();
    assert_eq!(reload.applied, ["logLevel"]);
    assert_eq!(reload.needs_restart, ["workers"]);
    assert_eq!((reload.config.log_level.as_str(), reload.config.workers), ("debug", 2));

    file(&dir, "logLevel: info\nworkers: none\n");
    assert!(reload.config.reload(&sources).is_err());
}

#[test]
fn flags_variables_and_keys_share_a_name() {
    for key in KEYS.iter() {
        let words: Vec<_> = key
            .flag()
            .trim_start_matches("--")
            .split('-')
            .map(str::to_owned)
            .collect();
        let variable = words.join("_").to_uppercase();
        let expected = if key.name == "nodeName" {
            variable
        } else {
            format!("VSCALED_{variable}")
        };
        assert_eq!(key.env, expected);
        assert_eq!(key.name.to_lowercase(), words.concat());
    }
}

#[test]
fn numbers_are_read_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "kubeletVersion: 1.30\nworkers: 7\nupdateThreshold: 0.25\n");
    let config = load(&["--config", &path]).unwrap();
    assert_eq!(config.kubelet_version.unwrap().to_string(), "1.30");
    assert_eq!((config.workers, config.update_threshold), (7, 0.25));
}

/// The rows of the table of keys, made from the definition.
fn rows() -> Vec<String> {
    let row = |key: &Key| {
        let default = if key.default.is_empty() {
            "empty".to_owned()
        } else {
            format!("`{}`", key.default)
        };
        let live = if key.live { "yes" } else { "no" };
        format!(
            "| `{}` | `{}` | `{}` | {default} | {live} | {} |",
            key.name,
            key.flag(),
            key.env,
            key.meaning.replace('|', "\\|")
        )
    };
    KEYS.iter().map(row).collect()
}

/// With VSCALED_WRITE_DOCS set, the table in docs/configuration.md is written anew.
#[test]
fn every_key_is_documented_with_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let documentation = fs::read_to_string(path).unwrap();
    let is_row = |line: &&str| line.starts_with("| `");
    if std::env::var_os("VSCALED_WRITE_DOCS").is_some() {
        let head = documentation.lines().take_while(|line| !is_row(line));
        let tail = documentation
            .lines()
            .skip_while(|line| !is_row(line))
            .skip_while(is_row);
        let lines: Vec<_> = head
            .map(str::to_owned)
            .chain(rows())
            .chain(tail.map(str::to_owned))
            .collect();
        fs::write(path, lines.join("\n") + "\n").unwrap();
        return;
    }
    assert_eq!(documentation.lines().filter(is_row).collect::<Vec<_>>(), rows());
}

/// The keys whose meanings give bounds, such as `(1 to 64)`, with these.
fn bounded() -> Vec<(&'static Key, &'static str)> {
    let bounds = |key: &'static Key| {
        let (_, bounds) = key.meaning.split_once('(').filter(|(_, text)| text.contains(" to "))?;
        Some((key, bounds.split_once(')').unwrap().0))
    };
    let bounded: Vec<_> = KEYS.iter().filter_map(bounds).collect();
    assert!(bounded.len() > 10, "{bounded:?}");
    bounded
}

#[test]
fn documented_bounds_are_enforced() {
    for (key, bounds) in bounded() {
        let refused = refusal(&[&format!("{}=x", key.flag())]);
        assert!(refused.ends_with(&format!("from {bounds}")), "{}: {refused}", key.name);
    }
}

#[test]
fn documented_bounds_are_allowed() {
    for (key, bounds) in bounded() {
        let (least, most) = bounds.split_once(" to ").unwrap();
        for bound in [least, most] {
            load(&[&format!("{}={bound}", key.flag())]).unwrap();
        }
    }
}

#[test]
fn decisions_have_the_options_of_their_keys() {
    let config = load(&[
        "--update-threshold=0.25",
        "--in-place-lifetime-threshold=1h",
        "--quick-oom-threshold=2m",
        "--update-modes=InPlace",
        "--recommender=mine",
        "--cpu-burst=20%",
    ]);
    let expected = decide::Options {
        update_threshold: 0.25,
        lifetime: SignedDuration::from_hours(1),
        oom_window: SignedDuration::from_mins(2),
        modes: vec![UpdateMode::InPlace],
        recommender: Some("mine".to_owned()),
        burst: Some("20%".parse().unwrap()),
        ..decide::Options::default()
    };
    assert_eq!(config.unwrap().decide_options(), expected);
}

#[test]
fn reads_take_no_longer_than_updates() {
    for (timeout, read, update) in [("500ms", 500, 500), ("1m", 2000, 60_000)] {
        let deadlines = load(&[&format!("--runtime-timeout={timeout}")]).unwrap().deadlines();
        let [read, update] = [read, update].map(Duration::from_millis);
        assert_eq!(deadlines, Deadlines { read, update });
    }
}

#[test]
fn unusual_places_are_used() {
    let audit = |audit: &str| load(&["--state-dir=/state", audit]).unwrap().audit_file();
    assert_eq!(audit("--audit-log=auto"), Some("/state/audit.jsonl".into()));
    assert_eq!(audit("--audit-log=none"), None);
    assert_eq!(audit("--audit-log=/audit"), Some("/audit".into()));
    let root = |root: &str| {
        let config = load(&[&format!("--cgroup-root={root}")]).unwrap();
        config.custom_cgroup_root().map(Path::to_owned)
    };
    assert_eq!(root("/sys/fs/cgroup"), None);
    assert_eq!(root("/host/cgroup"), Some("/host/cgroup".into()));
}

#[test]
fn a_file_of_the_version_before_reads_the_same() {
    for recorded in ["cluster.yaml", "node.yaml"] {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/configuration-v1alpha1");
        let before = format!("{root}/{recorded}");
        let text = fs::read_to_string(&before).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let now = dir.path().join(recorded);
        fs::write(&now, text.replace(API_VERSION_BEFORE, API_VERSION)).unwrap();
        let [before, now] = [before.as_str(), now.to_str().unwrap()].map(|path| {
            let arguments = sources(command(), &["--node-name=node-1", "--config", path]);
            let printed = Config::load(&arguments).unwrap().to_json().unwrap();
            (printed, arguments.outdated_file().is_some())
        });
        assert_eq!(before.0, now.0);
        assert!(before.0.contains(r#""apiVersion": "vscaled.io/v1""#), "{}", before.0);
        assert_eq!((before.1, now.1), (true, false));
    }
}

#[test]
fn a_configuration_in_a_pipe_is_read_once() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let text = format!("apiVersion: {API_VERSION_BEFORE}\nkind: {KIND}\nworkers: 7\n");
    writer.write_all(text.as_bytes()).unwrap();
    drop(writer);
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let arguments = sources(command(), &["--node-name=node-1", "--config", &path]);
    assert_eq!(arguments.outdated_file(), None);
    let config = Config::load(&arguments).unwrap();
    assert_eq!(config.workers, 7);
    let refused = config.reload(&arguments).unwrap_err().to_string();
    assert!(
        refused.ends_with("is no regular file, and is read only at the start"),
        "{refused}"
    );
}

#[test]
fn hooks_run_only_in_named_namespaces() {
    let allowed = |hooks: &str| {
        let config = load(&[&format!("--hooks={hooks}")]).unwrap();
        ["shop", "bank", "kube-system"].map(|namespace| allows_hooks_in(&config.hooks, namespace))
    };
    assert!(!allows_hooks_in(&load(&[]).unwrap().hooks, "shop"));
    assert_eq!(allowed(""), [false, false, false]);
    assert_eq!(allowed("shop"), [true, false, false]);
    assert_eq!(allowed("*"), [true, true, false]);
    assert_eq!(allowed("*, kube-system"), [true, true, true]);
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "hooks: [shop, \"*\"]\n");
    assert_eq!(load(&["--config", &path]).unwrap().hooks, ["shop", "*"]);
}

#[test]
fn the_earlier_switch_is_refused_with_the_new() {
    let dir = tempfile::tempdir().unwrap();
    for value in ["true", "false", "shop,true"] {
        let path = file(&dir, &format!("hooks: {value}\n"));
        let refused = refusal(&["--config", &path]);
        let begins = format!(
            "hooks: {value:?} from {path}:3 is refused: it must be a list, which may be empty, of the namespaces"
        );
        assert!(
            refused.starts_with(&begins) && refused.ends_with("not true or false as in earlier versions"),
            "{refused}"
        );
    }
    for name in ["Shop", "a_b", "-a", &"a".repeat(64), "**"] {
        assert!(refusal(&[&format!("--hooks={name}")]).starts_with("hooks: "), "{name}");
    }
}
