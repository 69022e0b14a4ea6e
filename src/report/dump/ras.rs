//! What NCCL's RAS reports, for people.

use super::head::{place, title};
use crate::analysis::dump::ras::summary;
use crate::analysis::dump::verdict::{doing, training_thread};
use crate::model::dump::DumpedProcess;
use crate::model::nccl_ras::{KeptRas, Member, RasAnswer, RasFact, RasFinding, RasSummary};
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
        let of = |member: &Member, size| Some(of_dumped(member, process(member, size)?));
        for (depth, line) in lines(&summary(answer), of) {
            let _ = writeln!(out, "{}{line}", "  ".repeat(depth));
        }
    }
}

/// An answer in lines, each with its depth. `of` says more of a communicator's rank, by the
/// communicator's size.
pub(in crate::report) fn lines(
    answer: &RasSummary,
    of: impl Fn(&Member, u32) -> Option<String>,
) -> Vec<(usize, String)> {
    let address = printable(&answer.address);
    if let Some(why) = &answer.error {
        return vec![(0, format!("NCCL RAS ({address}): {}", printable(why)))];
    }
    let version = printable(&answer.nccl_version);
    let size = answer.job.map_or(String::new(), |job| {
        format!(
            ", {} on {} with {}",
            counted(u64::from(job.processes), "process"),
            counted(u64::from(job.nodes), "node"),
            counted(u64::from(job.gpus), "GPU")
        )
    });
    let mut out = vec![(0, format!("NCCL RAS ({address}, NCCL {version}{size})"))];
    let communicators = counted(answer.communicators, "communicator");
    if answer.unread > 0 {
        let what = "errors or states of ranks that are not read here: ncclras -v shows them";
        out.push((
            1,
            format!("{communicators}, {} of them with {what}", answer.unread),
        ));
    } else if answer.communicators == 0 {
        out.push((1, "it knows no communicator".to_owned()));
    } else if answer.findings.is_empty() {
        let equal = "in each, all ranks have launched equally many collectives";
        out.push((1, format!("{communicators}: {equal}")));
    }
    let mut is_read = false;
    for finding in answer.findings.iter().take(FINDINGS) {
        out.push((1, words(finding)));
        let members = finding.members();
        for member in members.iter().take(MEMBERS) {
            let more = of(member, finding.size);
            is_read |= more.is_some();
            let more = more.unwrap_or_default();
            out.push((2, format!("{}{more}", whose(member))));
        }
        let left = ranks(finding).saturating_sub(members.len().min(MEMBERS) as u64);
        match (left, members.is_empty()) {
            (0, _) => {}
            (_, true) => out.push((2, "NCCL does not name them".to_owned())),
            (_, false) => out.push((2, format!("and {left} more"))),
        }
    }
    let left = answer.findings.len().saturating_sub(FINDINGS) as u64 + answer.more;
    if left > 0 {
        out.push((1, format!("and {left} more findings")));
    }
    let is_count = |each: &RasFinding| matches!(each.what, RasFact::Counts { .. });
    if answer.findings.iter().any(is_count) {
        let note = "numbers of a job that runs differ for moments: in a hang they stay as they are";
        out.push((1, note.to_owned()));
    }
    if answer.may_be_others && !is_read {
        let doubt = "NCCL before 2.28.7 names only ranks that are odd, and none that is read here: \
                     it may be another job";
        out.push((1, doubt.to_owned()));
    }
    out
}

/// The first thing to know of what was answered.
pub fn sentence(kept: &KeptRas) -> Option<String> {
    let answer = kept.answers.first()?;
    let lines = lines(answer, |_, _| None).into_iter();
    let mut first: Vec<String> = lines.take(2).map(|(_, line)| line).collect();
    if answer.may_be_others {
        first.push("it may be another job".to_owned());
    }
    Some(first.join(": "))
}

/// How many ranks a finding is about.
fn ranks(finding: &RasFinding) -> u64 {
    match &finding.what {
        RasFact::Counts { odd, .. } => odd.iter().map(|each| each.ranks).sum(),
        RasFact::MissingUnnamed { ranks } => *ranks,
        RasFact::Missing { .. } | RasFact::Error { .. } => 1,
    }
}

fn words(finding: &RasFinding) -> String {
    let hash = printable(&finding.hash);
    let of = format!(
        "communicator {hash} of {}",
        counted(u64::from(finding.size), "rank")
    );
    match &finding.what {
        RasFact::Missing {
            member,
            unresponsive,
            dead,
        } => {
            let why = match (dead, unresponsive) {
                (true, _) => "NCCL considers it dead",
                (false, true) => "it does not respond",
                // Before NCCL 2.26 the text has no more than its number.
                (false, false) if member.pid == 0 => "NCCL does not say why",
                (false, false) => "it is no longer a member, or not yet",
            };
            format!("{of}: rank {} is missing, {why}", member.rank)
        }
        RasFact::MissingUnnamed { ranks } => {
            let are = if *ranks == 1 { "is" } else { "are" };
            format!("{of}: {} {are} missing", counted(*ranks, "rank"))
        }
        RasFact::Error { member, code } => {
            format!(
                "{of}: rank {} has an asynchronous error (ncclResult_t {code})",
                member.rank
            )
        }
        RasFact::Counts {
            collective,
            odd,
            most,
            others,
        } => {
            let kind = printable(collective);
            let several = ranks(finding) > 1;
            let each: Vec<String> = odd
                .iter()
                .map(|each| match &each.members[..] {
                    [only] if each.ranks == 1 => {
                        let launched = count(each.launched);
                        format!("rank {} has launched {launched} {kind}", only.rank)
                    }
                    _ => format!(
                        "{} ranks have launched {} {kind}",
                        each.ranks,
                        count(each.launched)
                    ),
                })
                .collect();
            let others = match (*others, several) {
                (1, false) => "the other".to_owned(),
                (others, _) => format!("{others} others"),
            };
            format!("{of}: {}, {others} {}", each.join(", "), count(*most))
        }
    }
}

/// `rank 5: pid 4242 on 10.0.0.1`.
fn whose(member: &Member) -> String {
    if member.pid == 0 {
        return format!("rank {}: its process is not known", member.rank);
    }
    let host = printable(&member.host);
    format!("rank {}: pid {} on {host}", member.rank, member.pid)
}

/// `: waits: read at data.py:88`.
fn of_dumped(member: &Member, process: &DumpedProcess) -> String {
    let mut words = String::new();
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
    use crate::model::nccl_ras::{Communicator, JobSize, MissingRank, Ras, RasRank, UnnamedRanks};

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
            ..Communicator::default()
        };
        communicator.missing.push(MissingRank {
            member: member(3),
            unresponsive: true,
            dead: false,
        });
        let shown = text(Ok(Ras {
            nccl_version: "2.30.7".to_owned(),
            communicators: vec![communicator],
            ..Ras::default()
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
    fn what_the_text_form_does_not_name_is_said() {
        let unnamed = |launched| UnnamedRanks {
            collective: "collectives".to_owned(),
            launched,
            ranks: 4,
        };
        let mut communicator = Communicator {
            hash: "0x1".to_owned(),
            size: 9,
            unnamed: vec![unnamed(7), unnamed(6)],
            unnamed_missing: 3,
            ..Communicator::default()
        };
        communicator.missing.push(MissingRank {
            member: Member {
                rank: 8,
                ..Member::default()
            },
            ..MissingRank::default()
        });
        let shown = text(Ok(Ras {
            nccl_version: "2.24.3".to_owned(),
            job: Some(JobSize {
                nodes: 1,
                processes: 9,
                gpus: 9,
            }),
            may_be_others: true,
            communicators: vec![communicator],
        }));
        let of = "  communicator 0x1 of 9 ranks";
        for line in [
            "NCCL RAS (localhost:28028, NCCL 2.24.3, 9 processes on 1 node with 9 GPUs)\n"
                .to_owned(),
            format!("{of}: rank 8 is missing, NCCL does not say why\n"),
            "    rank 8: its process is not known\n".to_owned(),
            format!("{of}: 3 ranks are missing\n    NCCL does not name them\n"),
            format!(
                "{of}: 4 ranks have launched 6 collectives, 4 others 7\n    NCCL does not name"
            ),
            "  NCCL before 2.28.7 names only ranks that are odd".to_owned(),
        ] {
            assert!(shown.contains(&line), "{line}\n{shown}");
        }
    }

    #[test]
    fn without_an_answer_the_reason_is_one_line() {
        let shown = text(Err("nothing listens there".to_owned()));
        assert_eq!(
            shown,
            "\nNCCL RAS (localhost:28028): nothing listens there\n"
        );
        let none = text(Ok(Ras::default()));
        assert!(none.contains("it knows no communicator"), "{none}");
        let with = |hash: &str| {
            let communicators = vec![Communicator {
                hash: hash.to_owned(),
                size: 2,
                ..Communicator::default()
            }];
            text(Ok(Ras {
                communicators,
                ..Ras::default()
            }))
        };
        let equal = with("");
        assert!(equal.contains("equally many"), "{equal}");
        // Something is odd, and the text says it in lines that are not read.
        let odd = with("0x1");
        assert!(
            odd.contains("1 of them with errors") && !odd.contains("equally"),
            "{odd}"
        );
    }
}
