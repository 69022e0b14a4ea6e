//! What NCCL's RAS reports, for people.

use super::head::{place, title};
use crate::analysis::dump::ras::{RasFact, RasFinding, findings};
use crate::analysis::dump::verdict::{doing, training_thread};
use crate::model::dump::DumpedProcess;
use crate::model::nccl_ras::{Member, Ras, RasAnswer};
use crate::model::text::printable;
use crate::report::label::{count, counted};
use std::fmt::Write as _;

/// Findings that are listed, and ranks of each.
const FINDINGS: usize = 6;
const MEMBERS: usize = 4;

/// What was answered, or why nothing was. `process` finds the process of a communicator's rank, by
/// the communicator's size.
pub(super) fn ras<'d>(
    out: &mut String,
    answers: &[RasAnswer],
    process: impl Fn(&Member, u32) -> Option<&'d DumpedProcess>,
) {
    for (number, answer) in answers.iter().enumerate() {
        if number == 0 {
            out.push('\n');
        }
        let address = printable(&answer.address);
        match &answer.ras {
            Err(why) => {
                let _ = writeln!(out, "NCCL RAS ({address}): {}", printable(why));
            }
            Ok(ras) => {
                let version = printable(&ras.nccl_version);
                let _ = writeln!(out, "NCCL RAS ({address}, NCCL {version})");
                one(out, ras, &process);
            }
        }
    }
}

fn one<'d>(
    out: &mut String,
    ras: &Ras,
    process: &impl Fn(&Member, u32) -> Option<&'d DumpedProcess>,
) {
    let found = findings(ras);
    if found.is_empty() {
        let _ = writeln!(
            out,
            "  {}: in each, all ranks have launched equally many collectives",
            counted(ras.communicators.len() as u64, "communicator")
        );
        return;
    }
    for finding in found.iter().take(FINDINGS) {
        let _ = writeln!(out, "  {}", words(finding));
        let members: Vec<&Member> = match &finding.what {
            RasFact::Counts { odd, .. } => odd.iter().flat_map(|(_, members)| members).collect(),
            RasFact::Missing { member, .. } | RasFact::Error { member, .. } => vec![member],
        };
        for member in members.iter().take(MEMBERS) {
            let _ = writeln!(out, "    {}", whose(member, process(member, finding.size)));
        }
        if members.len() > MEMBERS {
            let _ = writeln!(out, "    and {} more", members.len() - MEMBERS);
        }
    }
    if found.len() > FINDINGS {
        let _ = writeln!(out, "  and {} more findings", found.len() - FINDINGS);
    }
    if found
        .iter()
        .any(|each| matches!(each.what, RasFact::Counts { .. }))
    {
        out.push_str(
            "  numbers of a job that runs differ for moments: in a hang they stay as they are\n",
        );
    }
}

fn words(finding: &RasFinding) -> String {
    let hash = printable(&finding.hash);
    let of = format!(
        "communicator {hash} of {}",
        counted(u64::from(finding.size), "rank")
    );
    match &finding.what {
        RasFact::Missing { member, why } => {
            format!("{of}: rank {} is missing, {why}", member.rank)
        }
        RasFact::Error { member, code } => {
            format!(
                "{of}: rank {} has an asynchronous error (ncclResult_t {code})",
                member.rank
            )
        }
        RasFact::Counts { kind, odd, most } => {
            let kind = printable(kind);
            let several = odd.len() > 1 || odd.iter().any(|(_, members)| members.len() > 1);
            let each: Vec<String> = odd
                .iter()
                .take(MEMBERS)
                .map(|(number, members)| match &members[..] {
                    [only] => format!("rank {} has launched {} {kind}", only.rank, count(*number)),
                    more => format!(
                        "{} ranks have launched {} {kind}",
                        more.len(),
                        count(*number)
                    ),
                })
                .collect();
            let others = match (most.1, several) {
                (1, false) => "the other".to_owned(),
                (others, _) => format!("{others} others"),
            };
            format!("{of}: {}, {others} {}", each.join(", "), count(most.0))
        }
    }
}

/// `rank 5: pid 4242 on 10.0.0.1, which waits: read at data.py:88`.
fn whose(member: &Member, process: Option<&DumpedProcess>) -> String {
    let mut words = format!(
        "rank {}: pid {} on {}",
        member.rank,
        member.pid,
        printable(&member.host)
    );
    let Some(process) = process else {
        return words;
    };
    if process.role.rank() != Some(member.rank) {
        let _ = write!(words, ", {} of the job", title(process.role));
    }
    if let Some(thread) = training_thread(process) {
        let _ = write!(words, ": {}", printable(&doing(thread)));
        if let Some(at) = &thread.at {
            let _ = write!(words, " at {}", place(at));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nccl_ras::{Communicator, MissingRank, RasRank};

    fn member(rank: u32) -> Member {
        Member {
            rank,
            host: "10.0.0.1".to_owned(),
            pid: 4240 + rank as i32,
            is_here: true,
        }
    }

    fn text(ras: Result<Ras, String>) -> String {
        let mut out = String::new();
        let answer = RasAnswer {
            address: "localhost:28028".to_owned(),
            ras,
        };
        super::ras(&mut out, &[answer], |_, _| None);
        out
    }

    #[test]
    fn a_rank_that_is_behind_and_one_that_is_missing_are_named() {
        let ranks = [1024, 1023, 1024].into_iter().zip(0..);
        let mut communicator = Communicator {
            hash: "0xa\u{1b}[31m".to_owned(),
            size: 4,
            ranks: ranks
                .map(|(count, rank)| RasRank {
                    member: member(rank),
                    async_error: 0,
                    counts: vec![("AllReduce".to_owned(), count)],
                })
                .collect(),
            missing: Vec::new(),
        };
        communicator.missing.push(MissingRank {
            member: member(3),
            unresponsive: true,
            dead: false,
        });
        let shown = text(Ok(Ras {
            nccl_version: "2.30.7".to_owned(),
            communicators: vec![communicator],
        }));
        assert!(
            shown.contains("rank 3 is missing, it does not respond"),
            "{shown}"
        );
        assert!(
            shown.contains("rank 1 has launched 1,023 AllReduce, 2 others 1,024"),
            "{shown}"
        );
        assert!(
            shown.contains("    rank 1: pid 4241 on 10.0.0.1\n"),
            "{shown}"
        );
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn without_an_answer_the_reason_is_one_line() {
        let shown = text(Err("nothing listens there".to_owned()));
        assert_eq!(
            shown,
            "\nNCCL RAS (localhost:28028): nothing listens there\n"
        );
        let equal = text(Ok(Ras::default()));
        assert!(equal.contains("equally many"), "{equal}");
    }
}
