//! Two images with busybox only, in the archive format of `docker save`, and the agent's image as released.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

/// Runs any command.
pub(crate) const BUSYBOX: &str = "vscaled.test/busybox:latest";
/// The sandbox's image, which sleeps forever.
pub(crate) const PAUSE: &str = "vscaled.test/pause:latest";

/// Builds an archive of both images in a directory.
pub(crate) fn archive(directory: &Path) -> PathBuf {
    let layer = directory.join("layer");
    fs::create_dir_all(layer.join("bin")).unwrap();
    fs::copy("/bin/busybox", layer.join("bin/busybox"))
        .expect("needs a static /bin/busybox: apt-get install busybox-static");
    fs::hard_link(layer.join("bin/busybox"), layer.join("bin/sh")).unwrap();
    output(
        Command::new("tar")
            .current_dir(directory)
            .args(["-C", "layer", "-cf", "layer.tar", "bin"]),
    );
    let digest = output(Command::new("sha256sum").arg(directory.join("layer.tar")));
    let digest = digest.split(' ').next().expect("sha256sum prints a digest");

    let manifest: Vec<_> = [("busybox", BUSYBOX), ("pause", PAUSE)]
        .into_iter()
        .map(|(name, tag)| {
            let config = format!("{name}.json");
            let image = json!({
                "architecture": architecture(), "os": "linux",
                "config": {"Entrypoint": ["/bin/busybox", "sleep", "1000000"], "Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
                // Equal content would make both the same image.
                "comment": name,
            });
            fs::write(directory.join(&config), image.to_string()).unwrap();
            json!({"Config": config, "RepoTags": [tag], "Layers": ["layer.tar"]})
        })
        .collect();
    fs::write(directory.join("manifest.json"), json!(manifest).to_string()).unwrap();
    let files = ["manifest.json", "busybox.json", "pause.json", "layer.tar"];
    output(
        Command::new("tar")
            .current_dir(directory)
            .args(["-cf", "images.tar"])
            .args(files),
    );
    directory.join("images.tar")
}

/// An archive of the agent's image, `vscaled:latest`. It is built like the released one, from this build of the
/// programs and their libraries; `VSCALED_TEST_IMAGE` names the archive of another image to test.
pub(crate) fn agent_archive(directory: &Path) -> PathBuf {
    let released = std::env::var_os("VSCALED_TEST_IMAGE").unwrap_or_default();
    if !released.is_empty() {
        return released.into();
    }
    let programs = [
        ("vscaled", env!("CARGO_BIN_EXE_vscaled")),
        ("vscalectl", env!("CARGO_BIN_EXE_vscalectl")),
    ];
    let root = directory.join("root");
    let bin = root.join("usr/local/bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, program) in programs {
        // Symbols make up four fifths of the program.
        output(Command::new("strip").arg("-o").arg(bin.join(name)).arg(program));
    }
    for library in programs.iter().flat_map(|(_, program)| libraries(program)) {
        let place = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(library, place).unwrap();
    }
    let archive = directory.join("vscaled.oci.tar");
    pack(&root, &archive);
    archive
}

/// Creates an archive of an image with the files below a directory, and returns its digest.
pub(crate) fn pack(root: &Path, archive: &Path) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/image");
    let mut command = Command::new(script);
    command.env("VSCALED_IMAGE_COMPRESSION", "fast");
    let digest = output(command.args(["--pack", architecture()]).arg(root).arg(archive));
    digest.trim().to_owned()
}

/// The paths of a program's libraries, including the loader.
pub(crate) fn libraries(program: &str) -> Vec<String> {
    let listed = output(Command::new("ldd").arg(program));
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(str::to_owned).collect()
}

/// Go's name of this processor architecture.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The output of a command. A failure fails the test with the command's error message.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
