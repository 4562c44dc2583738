//! A Prometheus (Debian's package) that scrapes one agent, and a server with the kubelet's metrics as Kubernetes
//! documents them.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::http;

const PATIENCE: Duration = Duration::from_secs(60);

/// Dropping the value ends Prometheus and removes its data.
#[derive(Debug)]
pub(crate) struct Prometheus {
    process: Child,
    address: SocketAddr,
    directory: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `target` four times a second, with the job and the rules of
    /// deploy/observability.
    pub(crate) fn scraping(target: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/observability/alerts.yaml");
        let config = format!(
            "global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 1s}}\n\
             rule_files: ['{rules}']\n\
             scrape_configs:\n\
             - {{job_name: vscaled, static_configs: [{{targets: ['{target}']}}]}}\n\
             - {{job_name: kubelet, static_configs: [{{targets: ['{}']}}]}}\n",
            kubelet()
        );
        fs::write(directory.path().join("config.yaml"), config).unwrap();
        // Bind and release a port first: Prometheus does not report a port that it chose itself.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let log = File::create(directory.path().join("log")).unwrap();
        let process = Command::new("prometheus")
            .current_dir(directory.path())
            .args([
                "--config.file=config.yaml",
                "--storage.tsdb.path=data",
                "--log.level=warn",
            ])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("prometheus runs (Debian: apt-get install prometheus)");
        Self {
            process,
            address,
            directory,
        }
    }

    /// The result of an instant query, or the error.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let answer = self.ask(&format!("/api/v1/query?query={}", http::escaped(query)));
        match answer["data"]["result"].as_array() {
            Some(result) => Ok(result.clone()),
            None => Err(format!("{query}: {}", answer["error"])),
        }
    }

    /// The name and the health of every alert.
    pub(crate) fn rules(&self) -> Vec<(String, String)> {
        let answer = self.ask("/api/v1/rules");
        let groups = answer["data"]["groups"].as_array().expect("groups of rules");
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        rules.map(|rule| (text(&rule["name"]), text(&rule["health"]))).collect()
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain for {what}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ask(&self, path: &str) -> Value {
        let ready = || http::get(self.address, "/-/ready").is_some_and(|(status, _)| status == 200);
        self.until("Prometheus to answer", ready);
        let (_, body) = http::get(self.address, path).expect("an answer");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// Serves the kubelet's resize metrics until the test ends.
fn kubelet() -> SocketAddr {
    const METRICS: &str = include_str!("../../data/kubelet-resize-metrics.txt");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                METRICS.len()
            );
            // A client that disconnects early tries again.
            let answered = connection
                .read(&mut [0; 4096])
                .and_then(|_| connection.write_all((head + METRICS).as_bytes()));
            answered.unwrap_or_default();
        }
    });
    address
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let ended = self.process.kill().and_then(|()| self.process.wait());
        if let Err(error) = ended {
            eprintln!("prometheus: {error}");
        }
    }
}
