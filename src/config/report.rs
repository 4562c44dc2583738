//! The keys about OOM reports, checked together: some have a meaning only with others.

use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;

use super::ConfigError;
use super::keys::Resolved;
use super::values::{self, Source};
use crate::report::events::VpaWindows;
use crate::report::grpc::{Endpoint, GrpcOptions, TlsFiles};
use crate::report::log::Bounds;
use crate::resources::Bytes;

/// Where OOM reports go, and how much is kept of those that nobody has acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportConfig {
    /// The receiver; none reports over gRPC to nobody.
    #[serde(serialize_with = "values::or_empty")]
    pub report_grpc_endpoint: Option<Endpoint>,
    /// Who may sign its certificate; none believes the system's authorities.
    #[serde(serialize_with = "values::path_or_empty")]
    pub report_grpc_ca_file: Option<PathBuf>,
    /// The agent's certificate.
    #[serde(serialize_with = "values::path_or_empty")]
    pub report_grpc_cert_file: Option<PathBuf>,
    /// And its key.
    #[serde(serialize_with = "values::path_or_empty")]
    pub report_grpc_key_file: Option<PathBuf>,
    /// The name in the receiver's certificate; empty is the endpoint's host.
    pub report_grpc_server_name: String,
    /// Whether reports may leave the node in the clear.
    pub report_grpc_plaintext: bool,
    /// The longest wait between attempts.
    #[serde(serialize_with = "values::duration")]
    pub report_grpc_max_backoff: Duration,
    /// How long nothing may be acknowledged.
    #[serde(serialize_with = "values::duration")]
    pub report_grpc_ack_timeout: Duration,
    /// Whether kills become Events on their pods; none is where there is an API server.
    #[serde(serialize_with = "values::or_auto")]
    pub report_pod_events: Option<bool>,
    /// Whether the VPA recommender is told by Events.
    pub report_vpa_events: bool,
    /// The least time between two such Events about one container.
    #[serde(serialize_with = "values::signed_duration")]
    pub report_vpa_events_window: SignedDuration,
    /// Room on disk.
    #[serde(serialize_with = "values::bytes")]
    pub spool_max_bytes: Bytes,
    /// Reports there.
    pub spool_max_reports: usize,
}

impl ReportConfig {
    pub(super) fn check(given: &Resolved, source: Source) -> Result<Self, ConfigError> {
        let (hour, millis) = (SignedDuration::from_hours(1), SignedDuration::from_millis);
        let endpoint = &given.report_grpc_endpoint;
        let config = Self {
            report_grpc_endpoint: endpoint.read_or_empty("https://host:port, http://host:port or unix:///path")?,
            report_grpc_ca_file: given.report_grpc_ca_file.path_or_empty()?,
            report_grpc_cert_file: given.report_grpc_cert_file.path_or_empty()?,
            report_grpc_key_file: given.report_grpc_key_file.path_or_empty()?,
            report_grpc_server_name: given.report_grpc_server_name.host_name()?,
            report_grpc_plaintext: given
                .report_grpc_plaintext
                .one_of(&[("false", false), ("true", true)])?,
            report_grpc_max_backoff: given
                .report_grpc_max_backoff
                .duration(millis(10)..=hour)?
                .unsigned_abs(),
            report_grpc_ack_timeout: given
                .report_grpc_ack_timeout
                .duration(millis(100)..=hour)?
                .unsigned_abs(),
            report_pod_events: given.report_pod_events.one_of(&[
                ("auto", None),
                ("false", Some(false)),
                ("true", Some(true)),
            ])?,
            report_vpa_events: given.report_vpa_events.one_of(&[("false", false), ("true", true)])?,
            report_vpa_events_window: given
                .report_vpa_events_window
                .duration(SignedDuration::from_mins(1)..=SignedDuration::from_hours(24))?,
            spool_max_bytes: given
                .spool_max_bytes
                .bytes(Bytes::new(1 << 20)..=Bytes::new(256 << 20))?,
            spool_max_reports: given.spool_max_reports.number(2000..=100_000)?,
        };
        let exposed = config.report_grpc_endpoint.as_ref().is_some_and(Endpoint::is_exposed);
        if exposed && !config.report_grpc_plaintext {
            return Err(endpoint.refused("https:// to another machine, unless reportGrpcPlaintext is true"));
        }
        for (key, wanted) in [
            (&given.report_pod_events, config.report_pod_events == Some(true)),
            (&given.report_vpa_events, config.report_vpa_events),
        ] {
            if wanted && !source.has_cluster() {
                return Err(key.refused("not true with this source: Events need an API server"));
            }
        }
        match (&config.report_grpc_cert_file, &config.report_grpc_key_file) {
            (Some(_), None) => Err(given.report_grpc_key_file.refused("given with reportGrpcCertFile")),
            (None, Some(_)) => Err(given.report_grpc_cert_file.refused("given with reportGrpcKeyFile")),
            (Some(_), Some(_)) | (None, None) => Ok(config),
        }
    }

    /// The receiver to report to, if there is one.
    #[must_use]
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
    #[must_use]
    pub fn pod_events(&self) -> bool {
        self.report_pod_events.unwrap_or(true)
    }

    /// How sparsely the VPA recommender is told by Events, if it is.
    #[must_use]
    pub fn vpa_events(&self) -> Option<VpaWindows> {
        self.report_vpa_events.then(|| VpaWindows {
            usual: self.report_vpa_events_window,
            ..VpaWindows::default()
        })
    }

    /// How much is kept.
    #[must_use]
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
    fn a_certificate_without_its_key_is_refused_and_so_is_a_key_alone() {
        let error = refusal(&["--report-grpc-cert-file=/crt"]);
        assert!(
            error.contains("reportGrpcKeyFile: \"\"") && error.contains("given with reportGrpcCertFile"),
            "{error}"
        );
        assert!(refusal(&["--report-grpc-key-file=/key"]).starts_with("reportGrpcCertFile: "));
    }

    #[test]
    fn events_need_an_api_server_and_the_recommender_is_told_by_them_only_if_asked_for() {
        assert!(refusal(&["--report-pod-events=true"]).starts_with("reportPodEvents: \"true\""));
        assert!(refusal(&["--report-vpa-events"]).contains("need an API server"));
        assert!(refusal(&["--report-vpa-events-window=10s"]).starts_with("reportVpaEventsWindow: "));
        let cluster = ["--source=kubernetes", "--node-name=n"];
        let config = load(&cluster).unwrap().report;
        assert!(config.pod_events() && config.vpa_events().is_none());
        let config = load(&[&cluster[..], &["--report-pod-events=false", "--report-vpa-events"]].concat()).unwrap();
        assert!(!config.report.pod_events());
        assert_eq!(
            config.report.vpa_events(),
            Some(crate::report::events::VpaWindows::default())
        );
    }

    #[test]
    fn reports_do_not_cross_the_network_in_the_clear_unless_somebody_says_so() {
        let exposed = "--report-grpc-endpoint=http://10.0.0.1:8080";
        assert!(refusal(&[exposed]).contains("unless reportGrpcPlaintext is true"));
        load(&[exposed, "--report-grpc-plaintext"]).unwrap();
        load(&["--report-grpc-endpoint=http://127.0.0.1:8080"]).unwrap();
        load(&["--report-grpc-endpoint=unix:///run/recommender.sock"]).unwrap();
    }
}
