//! `vscalectl`, the local command line of vscaled.

fn main() -> std::process::ExitCode {
    vscaled::cli::main()
}
