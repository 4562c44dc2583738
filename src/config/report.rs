//! The keys about reports of OOM kills, and the options that follow from them.

use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use super::parse::{BOOLEAN, ENDPOINT, absolute_path, bytes, duration, host_name, number, or, read};
use super::values::{Optional, Source, Switch};
use crate::model::Bytes;
use crate::report::grpc::{Endpoint, GrpcOptions, TlsFiles};
use crate::report::log::Bounds;

/// Where reports of OOM kills go, and how many of those that are not acknowledged are kept.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct ReportConfig {
    /// The receiver of OOM kills: https://host:port, http://host:port or unix:///path; empty reports to none.
    #[arg(long, default_value = "", value_parser = or("", read::<Endpoint>(ENDPOINT)))]
    pub report_grpc_endpoint: Optional<Endpoint>,
    /// The authorities (PEM) that may sign the receiver's certificate; empty trusts the system's.
    #[arg(long, default_value = "", value_parser = or("", absolute_path()))]
    pub report_grpc_ca_file: Optional<PathBuf>,
    /// The agent's certificate (PEM) for receivers that ask for one; empty shows none.
    #[arg(long, default_value = "", value_parser = or("", absolute_path()))]
    pub report_grpc_cert_file: Optional<PathBuf>,
    /// The key (PEM) of that certificate.
    #[arg(long, default_value = "", value_parser = or("", absolute_path()))]
    pub report_grpc_key_file: Optional<PathBuf>,
    /// The name in the receiver's certificate; empty is the host of its endpoint.
    #[arg(long, default_value = "", value_parser = host_name())]
    pub report_grpc_server_name: String,
    /// With `true`, http:// is allowed to other machines: anybody on the way can read reports and acknowledge them.
    #[arg(long, default_value = "false", value_parser = read::<bool>(BOOLEAN))]
    pub report_grpc_plaintext: Switch,
    /// The longest wait between attempts to reach the receiver (10ms to 1h).
    #[arg(long, default_value = "1m", value_parser = duration::<Duration>("10ms", "1h"))]
    pub report_grpc_max_backoff: Duration,
    /// How long the receiver may acknowledge nothing before it counts as stuck (100ms to 1h).
    #[arg(long, default_value = "30s", value_parser = duration::<Duration>("100ms", "1h"))]
    pub report_grpc_ack_timeout: Duration,
    /// Whether OOM kills become Events on their pods: `true` needs an API server, `auto` is true where there is one, or `false`.
    #[arg(long, default_value = "auto", value_parser = or("auto", read::<bool>(BOOLEAN)))]
    pub report_pod_events: Optional<bool>,
    /// With `true`, OOM kills become Events that look like evictions, for an unmodified VPA recommender; needs an API server.
    #[arg(long, default_value = "false", value_parser = read::<bool>(BOOLEAN))]
    pub report_vpa_events: Switch,
    /// The shortest time between two such Events about one container (1m to 24h).
    #[arg(long, default_value = "10m", value_parser = duration::<SignedDuration>("1m", "24h"))]
    pub report_vpa_events_window: SignedDuration,
    /// The size of the kill log (4Mi to 256Mi); once unacknowledged reports take half of it, the oldest are only counted.
    #[arg(long, default_value = "16Mi", value_parser = bytes("4Mi", "256Mi"))]
    pub spool_max_bytes: Bytes,
    /// How many unacknowledged reports it keeps (2000 to 100000); beyond that the oldest are only counted.
    #[arg(long, default_value = "10000", value_parser = number::<usize>("2000", "100000"))]
    pub spool_max_reports: usize,
}

impl ReportConfig {
    /// The field of the first key that contradicts the others, and its allowed values.
    pub(super) fn contradiction(&self, source: Source) -> Option<(&'static str, &'static str)> {
        let exposed = self.report_grpc_endpoint.as_ref().is_some_and(Endpoint::is_exposed);
        if exposed && !self.report_grpc_plaintext {
            return Some((
                "report_grpc_endpoint",
                "https:// to another machine, unless reportGrpcPlaintext is true",
            ));
        }
        let events = [
            ("report_pod_events", self.report_pod_events == Some(true)),
            ("report_vpa_events", self.report_vpa_events),
        ];
        if let Some((field, _)) = events.iter().find(|(_, is_set)| *is_set && !source.has_cluster()) {
            return Some((field, "not true with this source: Events need an API server"));
        }
        match (&self.report_grpc_cert_file, &self.report_grpc_key_file) {
            (Some(_), None) => Some(("report_grpc_key_file", "given with reportGrpcCertFile")),
            (None, Some(_)) => Some(("report_grpc_cert_file", "given with reportGrpcKeyFile")),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    /// The gRPC receiver, if there is one.
    pub fn grpc(&self) -> Option<GrpcOptions> {
        let identity = self
            .report_grpc_cert_file
            .clone()
            .zip(self.report_grpc_key_file.clone());
        Some(GrpcOptions {
            endpoint: self.report_grpc_endpoint.clone()?,
            tls: TlsFiles {
                ca: self.report_grpc_ca_file.clone(),
                identity,
                server_name: Some(self.report_grpc_server_name.clone()).filter(|name| !name.is_empty()),
            },
            longest_wait: self.report_grpc_max_backoff,
            patience: self.report_grpc_ack_timeout,
        })
    }

    /// Whether kills become Events on their pods, where there is an API server.
    pub fn pod_events(&self) -> bool {
        self.report_pod_events.unwrap_or(true)
    }

    /// The least time between two Events about one container for the VPA recommender, where it gets any.
    pub fn vpa_events(&self) -> Option<SignedDuration> {
        self.report_vpa_events.then_some(self.report_vpa_events_window)
    }

    /// The bounds of the spool.
    pub const fn bounds(&self) -> Bounds {
        Bounds {
            max_bytes: self.spool_max_bytes.get(),
            max_reports: self.spool_max_reports,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{load, refusal};

    #[test]
    fn a_receiver_has_the_certificates_given_for_it() {
        let config = load(&[
            "--report-grpc-endpoint=https://recommender:8443",
            "--report-grpc-ca-file=/ca",
            "--report-grpc-cert-file=/crt",
            "--report-grpc-key-file=/key",
        ])
        .unwrap();
        let grpc = config.report.grpc().unwrap();
        assert_eq!(grpc.tls.identity, Some(("/crt".into(), "/key".into())));
        assert_eq!((grpc.tls.ca, grpc.tls.server_name), (Some("/ca".into()), None));
        assert_eq!(load(&[]).unwrap().report.grpc(), None);
        assert_eq!(
            load(&[]).unwrap().report.bounds(),
            crate::report::log::Bounds::default()
        );
    }

    #[test]
    fn a_receiver_has_the_times_given_for_it() {
        let config = load(&[
            "--report-grpc-endpoint=https://recommender:8443",
            "--report-grpc-server-name=receiver",
            "--report-grpc-max-backoff=2m",
            "--report-grpc-ack-timeout=45s",
            "--spool-max-bytes=32Mi",
            "--spool-max-reports=5000",
        ]);
        let report = config.unwrap().report;
        let grpc = report.grpc().unwrap();
        assert_eq!([grpc.longest_wait, grpc.patience].map(|time| time.as_secs()), [120, 45]);
        assert_eq!(grpc.tls.server_name.as_deref(), Some("receiver"));
        let bounds = report.bounds();
        assert_eq!((bounds.max_bytes, bounds.max_reports), (32 << 20, 5000));
    }

    #[test]
    fn a_certificate_and_its_key_come_together() {
        let error = refusal(&["--report-grpc-cert-file=/crt"]);
        assert!(
            error.contains("reportGrpcKeyFile: \"\"") && error.contains("given with reportGrpcCertFile"),
            "{error}"
        );
        assert!(refusal(&["--report-grpc-key-file=/key"]).starts_with("reportGrpcCertFile: "));
    }

    #[test]
    fn events_for_recommenders_are_off_by_default() {
        assert!(refusal(&["--report-pod-events=true"]).starts_with("reportPodEvents: \"true\""));
        assert!(refusal(&["--report-vpa-events"]).contains("need an API server"));
        assert!(refusal(&["--report-vpa-events-window=10s"]).starts_with("reportVpaEventsWindow: "));
        let cluster = ["--source=kubernetes", "--node-name=n"];
        let config = load(&cluster).unwrap().report;
        assert!(config.pod_events() && config.vpa_events().is_none());
        let config = load(&[&cluster[..], &["--report-pod-events=false", "--report-vpa-events"]].concat()).unwrap();
        assert!(!config.report.pod_events());
        assert_eq!(config.report.vpa_events(), Some(jiff::SignedDuration::from_mins(10)));
    }

    #[test]
    fn plain_text_reports_need_consent() {
        let exposed = "--report-grpc-endpoint=http://10.0.0.1:8080";
        assert!(refusal(&[exposed]).contains("unless reportGrpcPlaintext is true"));
        load(&[exposed, "--report-grpc-plaintext"]).unwrap();
        load(&["--report-grpc-endpoint=http://127.0.0.1:8080"]).unwrap();
        load(&["--report-grpc-endpoint=unix:///run/recommender.sock"]).unwrap();
    }
}
