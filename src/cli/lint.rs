//! `vscalectl lint`: finds memory settings inside containers that no resize reaches, without a node and without an agent.

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;

use super::output::Output;
use super::page::{Page, TextLine, Tone, toned};
use super::{Failure, io, table};
use crate::lint::{Finding, LintRule, LintSeverity, findings};
use crate::model::objects::add_start_script_variables;
use crate::sources::{PodTemplate, parse_pod_templates};

/// Lists memory settings inside containers that a resize does not change, such as -Xmx and GOMEMLIMIT.
///
/// Reads command, args and env of all containers of pods and of workloads of any kind with a pod template. Ends with 1 if
/// there are any, for pipelines.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Manifests in YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    /// A table of variables that start scripts read, in addition to the known ones: on each line a variable's name, then flags or
    /// an option such as -Xmx, and the unit of a number without one
    #[arg(long, value_name = "FILE")]
    variables: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Errors: with findings, and when the file cannot be read.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(file) = &arguments.variables {
        let added = add_start_script_variables(io::read_text(file)?);
        added.map_err(|error| Failure::usage(anyhow!("{file}: {error}")))?;
    }
    let text = io::read_text(&arguments.file)?;
    let found = parse_pod_templates(&arguments.file, &text).map_err(Failure::usage)?;
    found.warnings.iter().for_each(|warning| io::warn(warning));
    let shown: Vec<ShownFinding> = found.templates.iter().flat_map(of_template).collect();
    arguments.output.print_list("findings", &shown, || render(&shown))?;
    if found.templates.is_empty() {
        let file = &arguments.file;
        return Err(anyhow!("{file}: no Pod and no pod template in it, so there is nothing to check").into());
    }
    if shown.is_empty() {
        return Ok(());
    }
    let errors = shown.iter().filter(|one| one.severity == LintSeverity::Error).count();
    let warnings = shown.len() - errors;
    Err(anyhow!("errors: {errors}, warnings: {warnings}").into())
}

/// The printed form, which is a promise to users and therefore a type of its own.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownFinding<'a> {
    namespace: &'a str,
    workload: &'a str,
    container: String,
    rule: LintRule,
    setting: &'static str,
    value: String,
    /// `command`, `args`, or `env` with the variable's name.
    source: String,
    severity: LintSeverity,
    message: String,
}

fn of_template(template: &PodTemplate) -> Vec<ShownFinding<'_>> {
    let spec = &template.spec;
    let (sidecars, init): (Vec<_>, Vec<_>) = spec.init_containers.iter().partition(|init| init.is_sidecar());
    // No resize concerns an init container that ends before the others start.
    let findings = |container| findings(container, spec.resources);
    let of_init = init.into_iter().flat_map(findings);
    let of_init = of_init.filter(|finding| finding.rule.severity() == LintSeverity::Error);
    let of_others = sidecars.into_iter().chain(&spec.containers).flat_map(findings);
    let shown = |finding: Finding| ShownFinding {
        namespace: &template.namespace,
        workload: &template.workload,
        rule: finding.rule,
        setting: finding.setting.option.name(),
        source: finding.setting.source.to_string(),
        severity: finding.rule.severity(),
        message: finding.to_string(),
        value: finding.setting.value,
        container: finding.container,
    };
    of_init.chain(of_others).map(shown).collect()
}

/// One row for each finding, then the message of each.
fn render(found: &[ShownFinding<'_>]) -> Page {
    if found.is_empty() {
        return "No findings.".into();
    }
    let header = "NAMESPACE  WORKLOAD  CONTAINER  SEVERITY  RULE  SETTING  VALUE  SOURCE";
    let rows = found.iter().map(|one| -> [TextLine; 8] {
        let tone = match one.severity {
            LintSeverity::Error => Tone::Bad,
            LintSeverity::Warning => Tone::Waiting,
        };
        [
            one.namespace.into(),
            one.workload.into(),
            (&one.container).into(),
            toned(tone, one.severity.to_string()),
            one.rule.to_string().into(),
            one.setting.into(),
            (&one.value).into(),
            (&one.source).into(),
        ]
    });
    let messages = found
        .iter()
        .map(|one| format!("{}/{} {}: {}", one.namespace, one.workload, one.container, one.message));
    Page::joined([table::fitted(header, rows).page(), messages.collect()])
}
