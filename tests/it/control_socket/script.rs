//! The scripted agent behind the real socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use vscaled::control::proto::{
    self, Amount, Amounts, Change, ChangeReply, Check, Container, DoctorReply, DoctorRequest, ExplainReply,
    ExplainRequest, GetReply, GetRequest, HistoryReply, HistoryRequest, OomKill, OomListReply, OomListRequest,
    Override, Pod, PodResult, ReleaseRequest, ReportReply, ReportRequest, RequestAndLimit, ResizeRequest, Stages, Step,
    Value, WatchRequest, Who, Workload, WorkloadWorth,
};
use vscaled::control::{
    CallGate, Caller, ChangeFeed, Changes, Control, ControlError, Right, check_change, find_pod, resize_values,
};
use vscaled::report::proto as report;

/// An agent with two pods. The name of a container decides the result of a resize.
pub(super) struct Script {
    pub(super) changes: ChangeFeed,
    pub(super) resized: Mutex<Vec<(Caller, ResizeRequest)>>,
    /// The refused callers, with the call and the reason.
    pub(super) turned_away: Mutex<Vec<(Caller, &'static str, String)>>,
    /// A resize of container `slow` ends when this token is cancelled.
    pub(super) release_slow: CancellationToken,
}

impl Script {
    fn get() -> Result<GetReply, ControlError> {
        Ok(GetReply {
            agent: Some(proto::Agent {
                version: "1.2.3".to_owned(),
                problems: vec!["no runtime answers".to_owned()],
                ..proto::Agent::default()
            }),
            pods: pods(),
        })
    }

    fn explain(request: &ExplainRequest) -> Result<ExplainReply, ControlError> {
        let pods = pods();
        Ok(ExplainReply {
            pod: Some(find_pod(&pods, &request.pod)?.clone()),
            values: values(),
            notes: vec!["app cpu limit: 500m, lowered from 900m by maxAllowed of the VPA".to_owned()],
            amounts: amounts_of_app(),
            next: "the runtime is told again in 4 s".to_owned(),
            changes: vec![change("Applied", "")],
        })
    }

    async fn resize(&self, caller: Caller, request: ResizeRequest) -> Result<ChangeReply, ControlError> {
        let values = resize_values(&request)?;
        if !request.selector.is_empty() {
            self.resized.lock().unwrap().push((caller, request));
            return Ok(ChangeReply {
                change: None,
                results: results(),
            });
        }
        find_pod(&pods(), &request.pod)?;
        self.resized.lock().unwrap().push((caller, request.clone()));
        let outcome = match values.containers[0].name.as_str() {
            "app" if request.dry_run => "Planned",
            "app" => "Applied",
            "owed" => "RuntimeOwed",
            "back" => "RolledBack",
            "never" => "Infeasible",
            "later" if self.resized.lock().unwrap().len() < 3 => "Deferred",
            "later" => "Applied",
            "newer" => "Transcended",
            "slow" => {
                self.release_slow.cancelled().await;
                "Applied"
            }
            "large" => {
                let refusal = "the node has 1Gi left, 2Gi are missing";
                return Err(ControlError::Refused(refusal.to_owned()));
            }
            other => {
                let refusal = format!("containers[0].name: the pod has no container {other:?}: it has app");
                return Err(ControlError::Invalid(refusal));
            }
        };
        let change = change(outcome, if outcome == "Applied" { "" } else { "as the script says" });
        if outcome == "Applied" {
            self.changes.send(|| change.clone());
        }
        Ok(ChangeReply {
            change: Some(change),
            results: Vec::new(),
        })
    }

    fn release(request: &ReleaseRequest) -> Result<ChangeReply, ControlError> {
        check_change(&request.pod, &request.selector, &request.namespace, &request.reason)?;
        if !request.selector.is_empty() {
            return Ok(ChangeReply {
                change: None,
                results: results(),
            });
        }
        find_pod(&pods(), &request.pod)?;
        Ok(ChangeReply {
            change: Some(change("Applied", "released")),
            results: Vec::new(),
        })
    }

    fn history(request: &HistoryRequest) -> Result<HistoryReply, ControlError> {
        if !request.pod.is_empty() {
            find_pod(&pods(), &request.pod)?;
        }
        Ok(HistoryReply {
            changes: vec![change("Applied", ""), change("Refused", "below what it uses")],
        })
    }

    fn oom_list(request: &OomListRequest) -> Result<OomListReply, ControlError> {
        let kills = vec![kill()];
        let wanted = |kill: &OomKill| request.pod.is_empty() || request.pod == "shop/web" && kill.pod.is_some();
        Ok(OomListReply {
            kills: kills.into_iter().filter(wanted).collect(),
        })
    }

    fn doctor() -> Result<DoctorReply, ControlError> {
        let check = |name: &str, status: &str, found: &str, mend: &str| Check {
            name: name.to_owned(),
            status: status.to_owned(),
            found: found.to_owned(),
            mend: mend.to_owned(),
        };
        Ok(DoctorReply {
            checks: vec![
                check("kernel", "ok", "Linux 6.18.0 x86_64", ""),
                check("kernel log", "warn", "/dev/kmsg cannot be read", "grant CAP_SYSLOG"),
                check(
                    "runtime",
                    "fail",
                    "nobody answers",
                    "start it, or name its socket with runtimeSocket",
                ),
            ],
        })
    }
}

/// The script behind the access check of a server.
#[derive(Clone)]
pub(super) struct Gated {
    pub(super) script: Arc<Script>,
    pub(super) gate: Arc<CallGate>,
}

#[tonic::async_trait]
impl Control for Gated {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        self.gate.read("get", request, async |_| Script::get()).await
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainReply>, Status> {
        let explain = async |request| Script::explain(&request);
        self.gate.read("explain", request, explain).await
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ChangeReply>, Status> {
        let needs = if request.get_ref().dry_run {
            Right::Read
        } else {
            Right::Change
        };
        let script = Arc::clone(&self.script);
        let resize = |caller, request| async move { script.resize(caller, request).await };
        self.gate.change("resize", needs, request, resize).await
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ChangeReply>, Status> {
        let release = |_, request| async move { Script::release(&request) };
        self.gate.change("release", Right::Change, request, release).await
    }

    async fn history(&self, request: Request<HistoryRequest>) -> Result<Response<HistoryReply>, Status> {
        let history = async |request| Script::history(&request);
        self.gate.read("history", request, history).await
    }

    async fn oom_list(&self, request: Request<OomListRequest>) -> Result<Response<OomListReply>, Status> {
        let list = async |request| Script::oom_list(&request);
        self.gate.read("oom list", request, list).await
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        self.gate
            .read("report", request, async |request: ReportRequest| {
                let mut reply = report();
                if let Some(micros) = request.since_us {
                    reply.since = format!("in {} s", micros / 1_000_000);
                }
                Ok(reply)
            })
            .await
    }

    async fn doctor(&self, request: Request<DoctorRequest>) -> Result<Response<DoctorReply>, Status> {
        self.gate.read("doctor", request, async |_| Script::doctor()).await
    }

    type WatchStream = Changes;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Changes>, Status> {
        self.gate.watch(&request, self.script.changes.watch())
    }
}

/// A report with one workload that requests less than before.
fn report() -> ReportReply {
    let amounts = |cpu: &str, memory: &str| Amounts {
        cpu: Some(cpu.to_owned()),
        memory: Some(memory.to_owned()),
    };
    let total = WorkloadWorth {
        pods: 3,
        requested_before: Some(amounts("3", "3Gi")),
        requested: Some(amounts("750m", "1536Mi")),
        avoided_kills: 1,
        avoided_evictions: 6,
        avoided_restarts: 5,
        avoided_throttled_seconds: 61.5,
        ..WorkloadWorth::default()
    };
    let workload = Workload {
        kind: "Deployment".to_owned(),
        name: "web".to_owned(),
    };
    let web = WorkloadWorth {
        namespace: "shop".to_owned(),
        workload: Some(workload),
        ..total.clone()
    };
    ReportReply {
        since: "2026-03-01T12:00:00Z".to_owned(),
        workloads: vec![web],
        total: Some(total),
    }
}

/// Results of one changed pod and one unchanged pod.
fn results() -> Vec<PodResult> {
    let result = |name: &str, change: Option<Change>, error: &str| PodResult {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        containers: vec!["app".to_owned(), "side".to_owned()],
        change,
        error: error.to_owned(),
    };
    vec![
        result("web", Some(change("Applied", "")), ""),
        result("db", None, "the pod has no container \"app\"; it has: db"),
    ]
}

fn amounts_of_app() -> Vec<Amount> {
    let pair = |request: &str, limit: &str| {
        Some(RequestAndLimit {
            request: Some(request.to_owned()),
            limit: Some(limit.to_owned()),
        })
    };
    let quantity = |text: &str| Some(text.to_owned());
    let cpu = Amount {
        container: "app".to_owned(),
        resource: "cpu".to_owned(),
        lower_bound: quantity("300m"),
        target: quantity("600m"),
        upper_bound: quantity("900m"),
        spec: pair("200m", "200m"),
        decided: pair("500m", "500m"),
        wanted: pair("500m", "500m"),
        allocated: quantity("200m"),
        in_force: pair("200m", "200m"),
        rules: vec!["app: cpu request 600m becomes 500m: the VPA's maxAllowed".to_owned()],
    };
    let memory = Amount {
        container: "app".to_owned(),
        resource: "memory".to_owned(),
        spec: pair("64Mi", "128Mi"),
        ..Amount::default()
    };
    vec![cpu, memory]
}

fn amounts(cpu: &str) -> Option<proto::Requirements> {
    let amounts = Some(Amounts {
        cpu: Some(cpu.to_owned()),
        memory: None,
    });
    Some(proto::Requirements {
        requests: amounts.clone(),
        limits: amounts,
    })
}

pub(super) fn kill() -> OomKill {
    OomKill {
        id: "b007-log-17".to_owned(),
        time: "2020-01-31T12:00:00Z".to_owned(),
        pod: Some(report::Pod {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "11111111-aaaa".to_owned(),
        }),
        container: Some(report::Container {
            name: "app".to_owned(),
            id: "c0ffee01".to_owned(),
        }),
        level: "pod".to_owned(),
        limit: Some(report::HitLimit {
            limit_bytes: Some(64 << 20),
            ..report::HitLimit::default()
        }),
        victim: Some(proto::OomVictim {
            pid: 4242,
            comm: "wor\u{1b}[2Jker".to_owned(),
            role: "child".to_owned(),
            memory: Some(report::Memory {
                anon_rss_bytes: 32 << 20,
                ..report::Memory::default()
            }),
            ..proto::OomVictim::default()
        }),
        group: vec![4242, 4243],
        own_write: Some(proto::OomOwnWrite {
            time: "2020-01-31T11:59:58Z".to_owned(),
            what: "memory.max of pod from 134217728 to 67108864".to_owned(),
        }),
        confidence: "exact".to_owned(),
        more_candidates: 0,
        while_down: true,
        ..OomKill::default()
    }
}

fn pods() -> Vec<Pod> {
    let web = Pod {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "11111111-aaaa".to_owned(),
        qos_class: "Burstable".to_owned(),
        vpa: Some("web".to_owned()),
        action: "resize".to_owned(),
        reason: "OutsideBounds".to_owned(),
        state: "Owed".to_owned(),
        detail: "the runtime\u{1b}[2J hangs".to_owned(),
        containers: vec![Container {
            name: "app".to_owned(),
            id: Some("containerd://c0ffee01".to_owned()),
            wanted: amounts("500m"),
            spec: amounts("200m"),
            ..Container::default()
        }],
        r#override: Some(Override {
            uid: 0,
            pid: Some(77),
            reason: "load test".to_owned(),
            since: "2020-01-31T12:00:00Z".to_owned(),
            until: None,
        }),
        labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        workload: Some(Workload {
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
        }),
        ..Pod::default()
    };
    let db = Pod {
        namespace: "shop".to_owned(),
        name: "db".to_owned(),
        uid: "22222222-bbbb".to_owned(),
        qos_class: "Guaranteed".to_owned(),
        action: "none".to_owned(),
        state: "NotManaged".to_owned(),
        containers: vec![Container {
            name: "db".to_owned(),
            id: Some("containerd://c0ffee02".to_owned()),
            wanted: None,
            spec: amounts("2"),
            ..Container::default()
        }],
        ..Pod::default()
    };
    vec![web, db]
}

fn values() -> Vec<Value> {
    let value = |level: &str, name: &str, path: &str, kernel: &str, runtime: &str, difference: &str| Value {
        level: level.to_owned(),
        name: name.to_owned(),
        path: path.to_owned(),
        file: "cpu.max".to_owned(),
        spec: "20000 100000".to_owned(),
        wanted: "50000 100000".to_owned(),
        kernel: kernel.to_owned(),
        runtime: runtime.to_owned(),
        owner: "vscaled".to_owned(),
        difference: difference.to_owned(),
        allocated: String::new(),
        systemd: if level == "pod" {
            kernel.to_owned()
        } else {
            String::new()
        },
    };
    let stored = "cpu_quota=20000 cpu_period=100000 and further things that go on for long";
    let late = "the runtime has 20000 stored: it would write that back when the container is updated by others, so it is told again";
    vec![
        value(
            "pod",
            "",
            "/kubepods/burstable/pod11111111-aaaa",
            "50000 100000",
            "",
            "",
        ),
        value(
            "container",
            "app",
            "/kubepods/burstable/pod11111111-aaaa/c0ffee01",
            "50000 100000",
            stored,
            late,
        ),
    ]
}

pub(super) fn change(outcome: &str, reason: &str) -> Change {
    Change {
        sequence: 7,
        at: "2026-01-31T12:00:00.25Z".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "11111111-aaaa".to_owned(),
        cause: "override".to_owned(),
        outcome: outcome.to_owned(),
        reason: reason.to_owned(),
        steps: vec![Step {
            via: "cgroup".to_owned(),
            level: "container".to_owned(),
            name: "app".to_owned(),
            file: "cpu.max".to_owned(),
            from: "20000 100000".to_owned(),
            to: "50000 100000".to_owned(),
            took_us: 85,
            ..Step::default()
        }],
        stages: Some(Stages {
            verified_us: 1290,
            ..Stages::default()
        }),
        missed: 0,
        kill: None,
        who: Some(Who {
            kind: "operator".to_owned(),
            uid: Some(0),
            pid: Some(77),
            ..Who::default()
        }),
    }
}
