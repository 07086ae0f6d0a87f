// SPDX-License-Identifier: Apache-2.0
//! `podwire ipam check`: compares what is assigned with what runs.

use std::process::ExitCode;
use std::time::Duration;

use agent_client::pools::{CHECK, CheckReport, CheckRequest, FindingView};
use anyhow::Result;
use clap::Args;
use text::escape;

use crate::cmd::status::{AgentArgs, parse};
use crate::output::{self, Format};

/// The agent looks several times at everything in the store.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Compare assigned addresses with the pods that run, and find contradictions in the store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire ipam check
  podwire ipam check --fix
  podwire ipam check -o json | jq '.findings[] | select(.problem == \"leaked\")'

The agent compares the objects of all nodes, and the pods of its own node. Run the command on each
node to compare all pods. What it finds, it looks at a second time, so pods that start or stop in
the meantime do no harm.

Exit status: 0 if there is no problem or --fix has repaired all, 1 if there is one or the check failed.")]
pub(crate) struct Check {
    /// Repair what can be repaired safely
    #[arg(long)]
    fix: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

pub(crate) fn run(args: &Check, format: Format) -> Result<ExitCode> {
    let response = args.agent.post(CHECK, &CheckRequest { fix: args.fix }, TIMEOUT)?;
    let report: CheckReport = parse(response.clone())?;
    match format {
        Format::Json => output::print_json(&response)?,
        Format::Text => output::print(&text(&report, args.fix))?,
    }
    let is_clean = report.findings.iter().all(|finding| finding.repaired);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(report: &CheckReport, fix: bool) -> String {
    let CheckReport { node, nodes, blocks, addresses, assigned, handles, findings } = report;
    let handles = handles.map(|count| format!(", handles: {count}")).unwrap_or_default();
    let node = escape::line(node);
    let mut text = format!(
        "compared  nodes: {nodes}, blocks: {blocks}, addresses: {addresses}{handles}; assigned on {node}: {assigned}\n"
    );
    for finding in findings {
        text += &lines(finding);
    }
    text + &summary(findings, fix)
}

/// Formats a problem and its repair.
fn lines(finding: &FindingView) -> String {
    let FindingView { problem, object, reason, repair, automatic, repaired } = finding;
    let label = match (repaired, automatic) {
        (true, _) => "done: ",
        (false, true) => "--fix: ",
        (false, false) => "to do: ",
    };
    let [problem, object, reason, repair] =
        [problem, object, reason, repair].map(|text| escape::line(text));
    format!("{problem:<9} {object}: {reason}\n{:<9} {label}{repair}\n", "")
}

fn summary(findings: &[FindingView], fix: bool) -> String {
    let (repaired, left): (Vec<_>, Vec<_>) = findings.iter().partition(|one| one.repaired);
    let automatic = left.iter().filter(|one| one.automatic).count();
    let problems = |count: usize| {
        if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") }
    };
    let done = if repaired.is_empty() {
        String::new()
    } else {
        format!("{} repaired, ", problems(repaired.len()))
    };
    match (left.len(), automatic) {
        (0, _) if repaired.is_empty() => "no problem found\n".to_owned(),
        (0, _) => format!("{} repaired, none left\n", problems(repaired.len())),
        (count, 0) => format!("{done}{} left\n", problems(count)),
        (count, automatic) if !fix => {
            format!("{}: `podwire ipam check --fix` repairs {automatic}\n", problems(count))
        }
        (count, _) => format!("{done}{} left: run the command again\n", problems(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(object: &str, automatic: bool, repaired: bool) -> FindingView {
        FindingView {
            problem: "leaked".into(),
            object: object.into(),
            reason: "pod default/\u{1b}[2J is gone".into(),
            repair: "release it".into(),
            automatic,
            repaired,
        }
    }

    fn report(findings: Vec<FindingView>) -> CheckReport {
        CheckReport {
            node: "n1".into(),
            nodes: 2,
            handles: Some(3),
            findings,
            ..CheckReport::default()
        }
    }

    #[test]
    fn findings_are_listed_with_their_repair() {
        let found =
            report(vec![finding("10.6.0.1", true, false), finding("10.6.0.2", false, false)]);
        let expected = "\
compared  nodes: 2, blocks: 0, addresses: 0, handles: 3; assigned on n1: 0
leaked    10.6.0.1: pod default/\\u{1b}[2J is gone
          --fix: release it
leaked    10.6.0.2: pod default/\\u{1b}[2J is gone
          to do: release it
2 problems: `podwire ipam check --fix` repairs 1
";
        assert_eq!(text(&found, false), expected);
    }

    #[test]
    fn summary_counts_what_is_left() {
        let check = |findings: &[FindingView], fix, expected: &str| {
            assert_eq!(summary(findings, fix), format!("{expected}\n"));
        };
        let (open, manual) = (finding("a", true, false), finding("b", false, false));
        let repaired = finding("c", true, true);
        check(&[], true, "no problem found");
        check(std::slice::from_ref(&repaired), true, "1 problem repaired, none left");
        check(&[repaired.clone(), manual.clone()], true, "1 problem repaired, 1 problem left");
        check(&[manual], false, "1 problem left");
        check(&[repaired, open], true, "1 problem repaired, 1 problem left: run the command again");
    }
}
