//! `torchspy doctor [--pid PID]`.

use crate::cli::failure::Failure;
use crate::cli::messages::printable;
use crate::cli::plan::DoctorPlan;
use crate::cli::{hints, messages};
use crate::os::permissions::{Check, Remedy, Verdict, check_host, check_target};
use std::fmt::Write;
use std::io;
use std::process::ExitCode;

/// Prints what may be sampled. Status 1 where something that is needed does not work.
pub(crate) fn run(plan: &DoctorPlan) -> Result<ExitCode, Failure> {
    let mut checks = check_host();
    if let Some(pid) = plan.pid {
        checks.extend(check_target(pid).map_err(|error| no_target(pid, error))?);
    }
    let text = table(&checks);
    messages::data(|out| out.write_all(text.as_bytes()))?;
    let failed = checks.iter().any(|check| check.verdict == Verdict::No);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn no_target(pid: i32, error: io::Error) -> Failure {
    let failure = match error.kind() {
        io::ErrorKind::NotFound => Failure::message(format!("there is no process {pid}")),
        _ => Failure::new(anyhow::Error::new(error).context(format!("cannot check process {pid}"))),
    };
    failure.hint("torchspy sees the processes of its own pid namespace: ps -e lists them")
}

/// One line per check, `ok`, `limited` or `no` first, and below it what would help. Each hint is
/// given once.
fn table(checks: &[Check]) -> String {
    let mut text = String::new();
    let mut given: Vec<Remedy> = Vec::new();
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Limited => "limited",
            Verdict::No => "no",
        };
        let _ = writeln!(
            text,
            "{verdict:<8}{:<17} {}",
            check.name,
            printable(&check.detail)
        );
        if let Some(remedy) = check.remedy
            && !given.contains(&remedy)
        {
            given.push(remedy);
            for (index, line) in hints::of_remedy(remedy).lines().enumerate() {
                let mark = if index == 0 { "hint:" } else { "" };
                let _ = writeln!(text, "        {mark:<6}{line}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_given_once() {
        let check = |name, verdict, remedy| Check {
            name,
            verdict,
            detail: "d\x1b".to_owned(),
            remedy,
        };
        let text = table(&[
            check("ptrace", Verdict::No, Some(Remedy::Container)),
            check("process_vm_readv", Verdict::No, Some(Remedy::Container)),
            check("kernel", Verdict::Ok, None),
        ]);
        assert_eq!(text.matches("hint:").count(), 1, "{text}");
        assert!(
            text.starts_with("no      ptrace            d\\x1b\n        hint: Docker"),
            "{text}"
        );
        assert!(
            text.ends_with("ok      kernel            d\\x1b\n"),
            "{text}"
        );
    }
}
