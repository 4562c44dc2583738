//! Combines the results of other benchmarks into a document, and draws charts from it.
//!
//!     cargo bench --bench pictures -- LINES RESULTS.json [DIRECTORY]
//!
//! `LINES` is the file that the benchmarks wrote (`VSCALED_BENCH_RESULTS`): a line of JSON for each table.

mod draw;
#[path = "../resize/machine.rs"]
#[allow(dead_code, reason = "shared by benchmarks of which none needs all of it")]
mod machine;

use std::path::PathBuf;
use std::{fs, thread};

use clap::Parser;
use jiff::Timestamp;
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct Arguments {
    lines: PathBuf,
    results: PathBuf,
    /// The directory for the charts; without it there are none.
    pictures: Option<PathBuf>,
    /// The measured commit.
    #[arg(long)]
    commit: Option<String>,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let lines = fs::read_to_string(&arguments.lines)?;
    let tables: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let results = json!({
        "at": Timestamp::now().round(jiff::Unit::Second)?,
        "commit": arguments.commit,
        // The kernel's builder is irrelevant.
        "machine": {
            "cores": thread::available_parallelism()?,
            "processor": machine::processor()?,
            "kernel": machine::kernel()?.split('-').next(),
        },
        "tables": tables,
    });
    fs::write(&arguments.results, format!("{results:#}\n"))?;
    if let Some(directory) = arguments.pictures {
        fs::create_dir_all(&directory)?;
        for (name, picture) in draw::pictures(&results) {
            fs::write(directory.join(name), picture)?;
        }
    }
    Ok(())
}
