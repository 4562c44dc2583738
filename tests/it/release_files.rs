//! Promise: a release is complete, documents its contents, and is reproducible.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::image::{architecture, output, pack};
use crate::support::skipped;

const SOURCE: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn unpack(archive: &Path) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    output(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(directory.path()),
    );
    directory
}

fn sha256(file: &Path) -> String {
    let printed = output(Command::new("sha256sum").arg(file));
    printed.split(' ').next().unwrap().to_owned()
}

/// Writes a program that runs another one.
fn write_program(file: &Path, runs: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, format!("#!/bin/sh\nexec {runs} \"$@\"\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The blob of a descriptor, with the length and the digest that it gives.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let file = layout.join("blobs/sha256").join(digest);
    assert_eq!(fs::metadata(&file).unwrap().len(), descriptor["size"].as_u64().unwrap());
    assert_eq!(sha256(&file), digest);
    file
}

#[test]
fn an_image_is_a_layout_of_blobs_with_the_right_digests() {
    let root = tempfile::tempdir().unwrap();
    write_program(&root.path().join("usr/local/bin/vscaled"), "true");
    let archive = root.path().with_extension("oci.tar");
    let digest = pack(root.path(), &archive);
    let layout = unpack(&archive);
    fs::remove_file(&archive).unwrap();
    let layout = layout.path();
    assert_eq!(read_json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");

    let names = read_json(&layout.join("index.json"))["manifests"].clone();
    let name = "io.containerd.image.name";
    assert_eq!(
        names[0]["annotations"][name],
        format!("docker.io/library/vscaled:{VERSION}")
    );
    assert_eq!(names[1]["annotations"][name], "docker.io/library/vscaled:latest");
    assert_eq!(names[0]["digest"], digest);
    assert_eq!(names[1]["digest"], digest);
    let images = read_json(&blob(layout, &names[0]))["manifests"].clone();
    assert_eq!(images.as_array().unwrap().len(), 1);
    assert_eq!(
        images[0]["platform"],
        json!({"architecture": architecture(), "os": "linux"})
    );

    let manifest = read_json(&blob(layout, &images[0]));
    let config = read_json(&blob(layout, &manifest["config"]));
    assert_eq!(config["architecture"], architecture());
    assert_eq!(config["config"]["Entrypoint"], json!(["/usr/local/bin/vscaled"]));
    assert_eq!(config["config"]["User"], "0:0");
    // kubectl vscale runs vscalectl by its name.
    assert_eq!(config["config"]["Env"], json!(["PATH=/usr/local/bin"]));
    assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], VERSION);
    let layer = blob(layout, &manifest["layers"][0]);
    let uncompressed = layout.join("layer");
    let gunzip = output(
        Command::new("sh")
            .args(["-c", "gzip -dc <\"$0\" >\"$1\""])
            .arg(&layer)
            .arg(&uncompressed),
    );
    assert_eq!(gunzip, "");
    assert_eq!(
        config["rootfs"]["diff_ids"][0],
        format!("sha256:{}", sha256(&uncompressed))
    );
    let listed = output(Command::new("tar").arg("-tvf").arg(&uncompressed));
    let program = listed
        .lines()
        .find(|line| line.ends_with("/usr/local/bin/vscaled"))
        .unwrap();
    assert!(program.starts_with("-rwxr-xr-x 0/0"), "{program}");
}

#[test]
fn an_image_has_programs_licence_and_authorities() {
    let (programs, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["vscaled", "vscalectl", "vscaled-notify"] {
        write_program(&programs.path().join(name), "true");
    }
    let mut script = Command::new(format!("{SOURCE}/scripts/image"));
    output(script.arg("--files").arg(programs.path()).arg(root.path()));
    let mut find = Command::new("find");
    let listed = output(find.current_dir(&root).args(["-type", "f"]));
    let files: BTreeSet<&str> = listed.lines().collect();
    let authorities = "./etc/ssl/certs/ca-certificates.crt";
    let expected = ["vscaled", "vscalectl", "vscaled-notify"].map(|name| format!("./usr/local/bin/{name}"));
    let expected = expected.iter().map(String::as_str);
    assert_eq!(files, expected.chain(["./LICENSE", authorities]).collect());
    // The path is one of those in which OpenSSL, and with it the agent, looks for the authorities of a system.
    let text = fs::read_to_string(root.path().join(authorities)).unwrap();
    assert!(
        text.matches("-----BEGIN CERTIFICATE-----").count() > 50,
        "{} bytes",
        text.len()
    );
}

#[test]
fn the_same_files_make_the_same_image_whoever_packs_them_when() {
    let digests = ["022", "077"].map(|umask| {
        let root = tempfile::tempdir().unwrap();
        write_program(&root.path().join("usr/local/bin/vscaled"), "true");
        let copy = root.path().join("copy");
        // Other times, other permissions and another order of the directory.
        let steps = "umask $0; cp -r \"$1\" \"$2\"; touch -d @$0 \"$2/local/bin/vscaled\"";
        let mut copied = Command::new("sh");
        copied.args(["-ec", steps, umask]).arg(root.path().join("usr"));
        fs::create_dir(&copy).unwrap();
        output(copied.arg(copy.join("usr")));
        pack(&copy, &root.path().join("image.tar"))
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn cargo_reads_the_context_of_the_dockerfile() {
    let text = fs::read_to_string(format!("{SOURCE}/.dockerignore")).unwrap();
    let kept = text.lines().filter_map(|line| line.strip_prefix('!'));
    let context = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "--parents"]).args(kept).arg(context.path());
    output(copy.current_dir(SOURCE));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let metadata: Value = serde_json::from_str(&output(cargo.current_dir(context.path()))).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let names: BTreeSet<_> = packages.filter_map(|package| package["name"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["vscaled", "vscaled-notify", "vscaled-sys"]));
}

/// The files that scripts/package makes, with substitutes for the released programs.
fn packages(umask: &str) -> TempDir {
    let programs = tempfile::tempdir().unwrap();
    let bin = programs.path().join(architecture());
    write_program(&bin.join("vscaled"), env!("CARGO_BIN_EXE_vscaled"));
    write_program(&bin.join("vscalectl"), env!("CARGO_BIN_EXE_vscalectl"));
    // The example, which cargo builds with `--example man`.
    let man = Path::new(env!("CARGO_BIN_EXE_vscalectl")).with_file_name("examples/man");
    let made = tempfile::tempdir().unwrap();
    let mut package = Command::new("sh");
    package.args(["-c", "umask $0; exec scripts/package \"$@\"", umask]);
    package.arg(programs.path()).arg(made.path()).arg(architecture());
    package
        .env("VSCALED_RELEASE_URL", "https://files.example/v1")
        .env("VSCALED_HOMEPAGE", "https://home.example")
        .env("VSCALED_MAN", man)
        .env("HELM", "none");
    output(package.current_dir(SOURCE));
    made
}

#[test]
fn packages_are_complete_and_the_same_whoever_makes_them() {
    const NAME: &str = "release_files::packages_are_complete";
    if !Path::new("/usr/bin/dpkg-deb").exists() {
        return skipped(NAME, "no dpkg-deb here");
    }
    let made = packages("022");
    let sums = fs::read_to_string(made.path().join("SHA256SUMS")).unwrap();
    assert_eq!(
        sums,
        fs::read_to_string(packages("077").path().join("SHA256SUMS")).unwrap()
    );
    output(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(made.path()),
    );

    let deb = made.path().join(format!("vscaled_{VERSION}_{}.deb", architecture()));
    let installed = tempfile::tempdir().unwrap();
    output(Command::new("dpkg-deb").arg("-R").arg(&deb).arg(installed.path()));
    let archive = made
        .path()
        .join(format!("vscaled-{VERSION}-linux-{}.tar.gz", architecture()));
    let unpacked = unpack(&archive);
    let local = unpacked
        .path()
        .join(format!("vscaled-{VERSION}-linux-{}", architecture()));

    let unit = fs::read_to_string(installed.path().join("usr/lib/systemd/system/vscaled.service")).unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let program = command.split(' ').next().unwrap();
    let said = output(Command::new(installed.path().join(program.trim_start_matches('/'))).arg("--version"));
    assert_eq!(said.trim(), format!("vscaled {VERSION}"));
    assert!(command.ends_with("--config /etc/vscaled/agent.yaml"), "{command}");
    assert!(installed.path().join("etc/vscaled/manifests").is_dir());
    let conffiles = fs::read_to_string(installed.path().join("DEBIAN/conffiles")).unwrap();
    assert_eq!(conffiles, "/etc/vscaled/agent.yaml\n");
    // zsh reads other directories below /usr/local than below /usr.
    for (root, packed, zsh) in [
        (installed.path().join("usr"), ".gz", "vendor-completions"),
        (local.clone(), "", "site-functions"),
    ] {
        for file in [
            &format!("share/man/man1/vscalectl.1{packed}"),
            &format!("share/man/man1/vscalectl-resize.1{packed}"),
            &format!("share/man/man8/vscaled-run.8{packed}"),
            "share/bash-completion/completions/vscalectl",
            &format!("share/zsh/{zsh}/_vscalectl"),
            "share/fish/vendor_completions.d/vscalectl.fish",
            "bin/vscaled",
            "bin/vscalectl",
            "lib/systemd/system/vscaled.service",
        ] {
            let length = fs::metadata(root.join(file)).map(|metadata| metadata.len());
            assert!(length.is_ok_and(|length| length > 0), "{}/{file}", root.display());
        }
    }
    for file in [
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "etc/vscaled/agent.yaml",
        "bin/kubectl-vscale",
        "bin/kubectl_complete-vscale",
    ] {
        assert!(local.join(file).exists(), "{file}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        output(
            Command::new("sh")
                .arg("-n")
                .arg(installed.path().join("DEBIAN").join(script)),
        );
    }
}

#[test]
fn a_removal_and_a_purge_leave_a_running_agent_alone() {
    if !Path::new("/usr/bin/dpkg-deb").exists() {
        return skipped("release_files::a_removal_and_a_purge", "no dpkg-deb here");
    }
    let made = packages("022");
    let deb = made.path().join(format!("vscaled_{VERSION}_{}.deb", architecture()));
    let root = tempfile::tempdir().unwrap();
    let control = root.path().join("control");
    output(Command::new("dpkg-deb").arg("-e").arg(deb).arg(&control));
    let (bin, restored) = (root.path().join("bin"), root.path().join("restored"));
    write_program(&bin.join("vscaled"), &format!("sh -c 'touch {}'", restored.display()));
    let run = |script: &str, action: &str| {
        let mut text = fs::read_to_string(control.join(script)).unwrap();
        for path in ["/var/lib/vscaled", "/run/vscaled", "/run/systemd/system"] {
            text = text.replace(path, &format!("{}{path}", root.path().display()));
        }
        let path = format!("{}:/usr/bin:/bin", bin.display());
        output(Command::new("sh").args(["-c", &text, script, action]).env("PATH", path));
    };
    let state = root.path().join("var/lib/vscaled");
    fs::create_dir_all(&state).unwrap();
    let lock = fs::File::create(state.join("vscaled.lock")).unwrap();
    lock.lock().unwrap();
    run("prerm", "remove");
    assert!(!restored.exists(), "an agent has the lock");
    run("postrm", "purge");
    assert!(state.is_dir(), "the agent of a pod has its state there");
    drop(lock);
    run("prerm", "remove");
    assert!(restored.exists());
    run("postrm", "purge");
    assert!(!state.exists());
}

#[test]
fn lintian_finds_no_error_in_the_package() {
    if !Path::new("/usr/bin/lintian").exists() {
        return skipped("release_files::lintian_finds_no_error", "no lintian here");
    }
    let made = packages("022");
    let deb = made.path().join(format!("vscaled_{VERSION}_{}.deb", architecture()));
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on=error,warning"]);
    // These programs are scripts, in place of the released ones.
    output(lintian.arg(deb));
}

#[test]
fn krew_finds_the_plugin_where_its_manifest_says() {
    if !Path::new("/usr/bin/dpkg-deb").exists() {
        return skipped("release_files::krew_finds_the_plugin", "no dpkg-deb here");
    }
    let made = packages("022");
    let text = fs::read_to_string(made.path().join("vscale.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(manifest["metadata"]["name"], "vscale");
    assert_eq!(manifest["spec"]["homepage"], "https://home.example");
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    assert!(manifest["spec"]["shortDescription"].as_str().unwrap().len() <= 50);
    let platform = &manifest["spec"]["platforms"][0];
    let url = platform["uri"].as_str().unwrap();
    let archive = made.path().join(url.strip_prefix("https://files.example/v1/").unwrap());
    assert_eq!(platform["sha256"], sha256(&archive));
    let files = unpack(&archive);
    for file in platform["files"].as_array().unwrap() {
        assert!(files.path().join(file["from"].as_str().unwrap()).exists(), "{file}");
    }
    let plugin = files.path().join(platform["bin"].as_str().unwrap());
    let help = output(Command::new(plugin).arg("--help"));
    assert!(help.starts_with("kubectl vscale:"), "{help}");
}

#[test]
fn the_release_workflow_runs_pinned_actions_and_scripts() {
    let text = fs::read_to_string(format!("{SOURCE}/.github/workflows/release.yml")).unwrap();
    let workflow: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(workflow["permissions"], json!({}));
    let steps = |job: &str| workflow["jobs"][job]["steps"].as_array().unwrap().clone();
    let build = steps("build");
    // A job that compiles code of dependencies has no right to write.
    assert_eq!(workflow["jobs"]["build"]["permissions"], json!({"contents": "read"}));
    assert_eq!(build[0]["with"]["persist-credentials"], false);
    // The checksums are those of all files.
    let commands = build.iter().filter_map(|step| step["run"].as_str());
    let last = commands.flat_map(str::lines).next_back().unwrap();
    assert!(last.starts_with("scripts/package "), "{last}");
    let mut scripts = BTreeSet::new();
    for step in build.into_iter().chain(steps("publish")) {
        if let Some(action) = step["uses"].as_str() {
            let commit = action.split('@').nth(1).unwrap();
            let is_commit = commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
            assert!(is_commit, "{action} may become another one");
        }
        let words = step["run"].as_str().unwrap_or_default().split_whitespace();
        scripts.extend(words.filter(|word| word.starts_with("scripts/")).map(str::to_owned));
    }
    assert_eq!(
        scripts,
        BTreeSet::from(["scripts/image", "scripts/package"].map(str::to_owned))
    );
    for script in scripts {
        assert!(Path::new(SOURCE).join(&script).exists(), "{script}");
    }
    // Nothing is published with a dependency that has a known defect.
    assert_eq!(workflow["jobs"]["publish"]["needs"], json!(["build", "advisories"]));
    let called = workflow["jobs"]["advisories"]["uses"].as_str().unwrap();
    let text = fs::read_to_string(Path::new(SOURCE).join(called)).unwrap();
    let advisories: Value = serde_saphyr::from_str(&text).unwrap();
    assert!(advisories["on"]["schedule"][0]["cron"].is_string(), "{text}");
    assert!(text.contains("cargo deny --locked check advisories"), "{text}");
}
