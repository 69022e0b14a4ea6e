//! The text that NCCL's RAS answers `VERBOSE STATUS` with. Source: src/ras/client_support.cc of
//! NCCL 2.24.3 (as 2.25.1) and 2.26.2 (as 2.27.3 and 2.28.3).
//!
//! It has a table of all communicators, and below it what is odd in them. Ranks are named where
//! they are fewer than half of a communicator's; of the others it has only the number.

use super::{MAX_KINDS, cut};
use crate::model::nccl_ras::{
    Communicator, JobSize, Member, MissingRank, Ras, RasRank, UnnamedRanks,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most communicators of a job: 16,384 ranks in 8 of 8 ranks each have a quarter of it.
const MAX_COMMUNICATORS: usize = 1 << 16;
/// Most ranks in a list: NCCL 2.24 cuts it after 1,023 characters (`lineBuf`).
const MAX_LIST: usize = 512;

/// What the text calls the values of `ncclResult_t` from 1 on (`ncclErrorToString`).
const ERRORS: [&str; 6] = [
    "Unhandled CUDA error",
    "System error",
    "Internal error",
    "Invalid argument",
    "Invalid usage",
    "Remote process error",
];

/// Parses the text behind `NCCL version `.
///
/// # Errors
/// A few words on what is wrong with it.
pub(super) fn parse_text(text: &str) -> Result<Ras, String> {
    let version = text.split([' ', '\n']).next().unwrap_or_default();
    let mut reader = Reader {
        ras: Ras {
            nccl_version: cut(version.to_owned()),
            may_be_others: true,
            ..Ras::default()
        },
        ..Reader::default()
    };
    for line in text.lines() {
        reader.take(line)?;
    }
    reader.close();
    match text.ends_with('\n') && reader.is_complete() {
        true => Ok(reader.ras),
        false => Err("its answer is cut".to_owned()),
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Section {
    #[default]
    Versions,
    Job,
    Communicators,
    Errors,
    Warnings,
}

/// What the lines of a section are about.
#[derive(Default)]
enum Block {
    /// Nothing that is kept.
    #[default]
    Other,
    /// Processes that NCCL has given up.
    Dead,
    /// Asynchronous errors.
    Errors,
    /// Numbers of one kind of collective.
    Counts(String),
}

/// What is said of a rank.
#[derive(Clone, Copy)]
enum Fact {
    Launched(u64),
    Missing { unresponsive: bool },
    Error(i32),
}

/// A row of the table: communicators that are alike.
#[derive(Clone, Copy)]
struct Row {
    first: usize,
    count: usize,
    is_odd: bool,
}

#[derive(Default)]
struct Reader {
    ras: Ras,
    section: Section,
    /// The next numbers are the job's.
    is_total: bool,
    rows: Vec<Row>,
    block: Block,
    /// Index of the communicator that the lines are about.
    communicator: Option<usize>,
    /// What is said of the ranks that follow, and of how many that have not followed yet.
    open: Option<(Fact, u32)>,
    /// Host and pid.
    dead: FxHashSet<(String, i32)>,
    /// By communicator and rank: the index in its ranks; and those that are missing.
    ranks: FxHashMap<(usize, u32), usize>,
    missing: FxHashSet<(usize, u32)>,
}

impl Reader {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let section = match line {
            "Job summary" => Section::Job,
            "Errors" => Section::Errors,
            "Warnings" => Section::Warnings,
            _ if line.starts_with("Communicators...") => Section::Communicators,
            _ => {
                match self.section {
                    Section::Versions => {}
                    Section::Job => self.job(line),
                    Section::Communicators => self.row(line)?,
                    Section::Errors | Section::Warnings => self.finding(line),
                }
                return Ok(());
            }
        };
        self.begin(None, Block::Other);
        self.section = section;
        Ok(())
    }

    /// Whether the text has an end, and says what is odd in each communicator that is.
    fn is_complete(&self) -> bool {
        let mut odd = self.rows.iter().filter(|row| row.is_odd);
        let has_all = odd.all(|row| {
            let communicators = self.ras.communicators.iter();
            let mut own = communicators.skip(row.first).take(row.count);
            own.all(|each| !each.hash.is_empty())
        });
        has_all && self.section == Section::Warnings
    }

    /// The job's numbers, behind those of processes on each node and GPUs of each.
    fn job(&mut self, line: &str) {
        if line.starts_with("(total)") {
            self.is_total = true;
            return;
        }
        let numbers = line
            .split_whitespace()
            .take(6)
            .map(|word| word.parse().ok());
        let numbers: Option<Vec<u32>> = numbers.collect();
        let Some(numbers) = numbers.filter(|_| self.is_total) else {
            return;
        };
        if let [nodes, _, _, processes, gpus] | [nodes, processes, gpus] = numbers[..] {
            self.ras.job = Some(JobSize {
                nodes,
                processes,
                gpus,
            });
            self.is_total = false;
        }
    }

    /// Number of the row, communicators, nodes, ranks on each node, ranks of a communicator and of
    /// all, status, errors.
    fn row(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().take(9).collect();
        let [number, count, _, _, size, _, _, errors] = words[..] else {
            return Ok(());
        };
        let (Ok(number), Ok(count), Ok(size)) = (
            number.parse::<usize>(),
            count.parse::<usize>(),
            size.parse::<u32>(),
        ) else {
            return Ok(());
        };
        let first = self.ras.communicators.len();
        if number != self.rows.len() || count > MAX_COMMUNICATORS.saturating_sub(first) {
            return Err("its answer is not understood".to_owned());
        }
        let is_odd = errors != "OK";
        self.rows.push(Row {
            first,
            count,
            is_odd,
        });
        let alike = (0..count).map(|_| Communicator {
            size,
            ..Communicator::default()
        });
        self.ras.communicators.extend(alike);
        Ok(())
    }

    fn finding(&mut self, line: &str) {
        match line {
            "DEAD" => self.begin(None, Block::Dead),
            "INCOMPLETE" | "TIMEOUT" => self.begin(None, Block::Other),
            _ if line.starts_with('#') => {
                let communicator = self.header(line);
                self.begin(communicator, Block::Other);
            }
            _ => {
                if let Some(item) = line.strip_prefix("  ") {
                    self.item(item);
                }
            }
        }
    }

    /// `#0-1 (27a079b828ff1a75) MISMATCH`: numbers of the row and in it, and the hash.
    fn header(&mut self, line: &str) -> Option<usize> {
        let (row, rest) = line.strip_prefix('#')?.split_once('-')?;
        let (number, rest) = rest.split_once(" (")?;
        let (hash, _) = rest.split_once(") ")?;
        let row = self.rows.get(row.parse::<usize>().ok()?)?;
        let number = number
            .parse()
            .ok()
            .filter(|number: &usize| *number < row.count)?;
        let hash = u64::from_str_radix(hash, 16).ok()?;
        let index = row.first + number;
        // As in the JSON.
        self.ras.communicators.get_mut(index)?.hash = format!("{hash:#x}");
        Some(index)
    }

    fn begin(&mut self, communicator: Option<usize>, block: Block) {
        self.close();
        (self.communicator, self.block) = (communicator, block);
    }

    fn item(&mut self, item: &str) {
        let lists = ["The missing rank", "The unknown rank"];
        if let Some(rest) = item.strip_prefix("Rank ") {
            self.rank(rest);
        } else if let Some(rest) = item.strip_prefix("Process ") {
            self.process(rest);
        } else if lists.iter().any(|list| item.starts_with(list)) {
            self.list(item);
        } else {
            self.heading(item);
        }
    }

    /// What the lines below are about.
    fn heading(&mut self, item: &str) {
        self.close();
        if let Some(rest) = item.strip_prefix("Missing communicator data from ") {
            let count = rest.split(' ').next().unwrap_or_default().parse().ok();
            let fact = Fact::Missing { unresponsive: true };
            self.open = count.map(|count| (fact, count));
        } else if let Some(rest) = item.strip_prefix("Communicator ranks have different ") {
            self.block = match rest.strip_suffix(" operation counts") {
                // All kinds together, before NCCL 2.26.
                Some("collective") => Block::Counts("collectives".to_owned()),
                Some(kind) => Block::Counts(cut(kind.to_owned())),
                None => Block::Other,
            };
        } else if item.starts_with("Asynchronous error") {
            self.block = Block::Errors;
        } else if item.starts_with("Initialization error") {
            self.block = Block::Other;
        } else if let Some((count, what)) = item.split_once(" ranks ")
            && let Ok(count) = count.parse()
        {
            self.open = self.fact(what).map(|fact| (fact, count));
        }
    }

    /// `have launched up to operation 6650` of ranks, `has …` of one.
    fn fact(&self, what: &str) -> Option<Fact> {
        let what = what.strip_prefix("have ").unwrap_or(what);
        let what = what.strip_prefix("has ").unwrap_or(what);
        match &self.block {
            Block::Counts(_) if what == "not launched any operations" => Some(Fact::Launched(0)),
            Block::Counts(_) => {
                let launched = what.strip_prefix("launched up to operation ")?;
                launched.parse().ok().map(Fact::Launched)
            }
            Block::Errors => {
                let error = what.strip_prefix("reported ")?;
                let code = ERRORS.iter().zip(1..).find(|(name, _)| **name == error)?.1;
                Some(Fact::Error(code))
            }
            Block::Other => {
                let unresponsive = false;
                let at = self.communicator?;
                let communicator = self.ras.communicators.get(at)?;
                let is_known = communicator.unnamed_missing > 0 || !communicator.missing.is_empty();
                match what {
                    "status NOCOMM" => Some(Fact::Missing { unresponsive }),
                    // NCCL 2.24 lists all that are missing here, too.
                    "status UNKNOWN" if !is_known => Some(Fact::Missing { unresponsive }),
                    _ => None,
                }
            }
            Block::Dead => None,
        }
    }

    /// `5 -- GPU 5 managed by process 483077 on node 172.16.64.210`, or with what is said of it
    /// behind its number.
    fn rank(&mut self, text: &str) {
        let (head, process) = text.split_once(" -- ").unwrap_or((text, ""));
        let (rank, what) = head.split_once(' ').unwrap_or((head, ""));
        let Ok(rank) = rank.parse::<u32>() else {
            return;
        };
        let process = process.split_once(" managed by process ");
        let process = process.and_then(|(_, rest)| rest.split_once(" on node "));
        // NCCL does not know the process of each rank.
        let process = process.and_then(|(pid, host)| Some((pid.parse().ok()?, host)));
        let (pid, host) = process.unwrap_or((0, ""));
        let member = Member {
            rank,
            host: cut(host.to_owned()),
            pid,
            is_here: false,
        };
        if what.is_empty() {
            if let Some((fact, left)) = &mut self.open {
                let fact = *fact;
                *left = left.saturating_sub(1);
                self.add(fact, member);
            }
            return;
        }
        self.close();
        if let Some(fact) = self.fact(what) {
            self.add(fact, member);
        }
    }

    /// `3487984 on node 172.16.64.213 managing GPU 5`.
    fn process(&mut self, text: &str) {
        let process = text.split_once(" on node ");
        if let (Block::Dead, Some((pid, rest))) = (&self.block, process)
            && let Ok(pid) = pid.parse()
        {
            let host = rest.split(' ').next().unwrap_or_default();
            self.dead.insert((cut(host.to_owned()), pid));
        }
    }

    /// `The missing ranks: 21,22`: NCCL 2.24 has no more than their numbers, and says itself that
    /// it cannot distinguish why.
    fn list(&mut self, text: &str) {
        let (Some((fact, count)), Some((_, list))) = (self.open, text.split_once(": ")) else {
            return;
        };
        let Fact::Missing { .. } = fact else {
            return;
        };
        let ranks = list.split(',').take(MAX_LIST);
        let mut ranks: Vec<u32> = ranks.map_while(|rank| rank.parse().ok()).collect();
        if (ranks.len() as u64) < u64::from(count) {
            // The last number may be cut.
            ranks.pop();
        }
        let fact = Fact::Missing {
            unresponsive: false,
        };
        self.open = Some((fact, count.saturating_sub(ranks.len() as u32)));
        for rank in ranks {
            let member = Member {
                rank,
                ..Member::default()
            };
            self.add(fact, member);
        }
    }

    fn add(&mut self, fact: Fact, member: Member) {
        let Some(at) = self.communicator else { return };
        let Some(communicator) = self.ras.communicators.get_mut(at) else {
            return;
        };
        let key = (at, member.rank);
        if let Fact::Missing { unresponsive } = fact {
            if self.missing.insert(key) {
                let dead = self.dead.contains(&(member.host.clone(), member.pid));
                communicator.missing.push(MissingRank {
                    member,
                    unresponsive,
                    dead,
                });
            }
            return;
        }
        let next = communicator.ranks.len();
        let index = *self.ranks.entry(key).or_insert(next);
        if index == next {
            communicator.ranks.push(RasRank {
                member,
                ..RasRank::default()
            });
        }
        let Some(rank) = communicator.ranks.get_mut(index) else {
            return;
        };
        match (fact, &self.block) {
            (Fact::Launched(launched), Block::Counts(kind))
                if rank.counts.len() < MAX_KINDS
                    && rank.counts.iter().all(|(known, _)| known != kind) =>
            {
                rank.counts.push((kind.clone(), launched));
            }
            (Fact::Error(code), _) => rank.async_error = code,
            _ => {}
        }
    }

    /// Keeps how many ranks have not been named.
    fn close(&mut self) {
        let Some((fact, left)) = self.open.take().filter(|(_, left)| *left > 0) else {
            return;
        };
        let at = self.communicator.unwrap_or(usize::MAX);
        let Some(communicator) = self.ras.communicators.get_mut(at) else {
            return;
        };
        match (fact, &self.block) {
            (Fact::Launched(launched), Block::Counts(kind)) => {
                communicator.unnamed.push(UnnamedRanks {
                    collective: kind.clone(),
                    launched,
                    ranks: left,
                });
            }
            (Fact::Missing { .. }, _) => {
                communicator.unnamed_missing = communicator.unnamed_missing.saturating_add(left);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NCCL 2.26.2's format strings, to the end of the table. `rows` are communicators in the row,
    /// ranks of each, status and errors.
    fn head(rows: &[(u32, u32, &str, &str)]) -> String {
        let mut text =
            "2.26.2 compiled with CUDA 12.8\nCUDA runtime version 12080, driver version 12080\n\n\
            Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n\
            (total)   per node  per process    (total)  (total)\n"
                .to_owned();
        text += &format!("{:7}  {:9}  {:11}  {:9}  {:7}\n", 2, 4, 1, 8, 8);
        text += "\nCommunicators... (0.01s)\n=============\n\n";
        text += "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    \
                 #  in group  per comm  per node  per comm  in group\n";
        for (number, (count, size, status, errors)) in rows.iter().enumerate() {
            text += &format!(
                "{number:5}  {count:8}  {:8}  {:>8}  {size:8}  {:8}  {status:>8}  {errors:>6}\n",
                2, "3-4", 8
            );
        }
        text
    }

    fn odd(head: &str, errors: &str, warnings: &str) -> Ras {
        let text = format!("{head}\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}");
        parse_text(&text).unwrap()
    }

    fn process(rank: u32) -> String {
        format!(
            "GPU {} managed by process {} on node 10.0.0.{}",
            rank % 4,
            100 + rank,
            1 + rank / 4
        )
    }

    fn member(rank: u32) -> Member {
        Member {
            rank,
            host: format!("10.0.0.{}", 1 + rank / 4),
            pid: 100 + rank as i32,
            is_here: false,
        }
    }

    fn unnamed(collective: &str, launched: u64, ranks: u32) -> UnnamedRanks {
        UnnamedRanks {
            collective: collective.to_owned(),
            launched,
            ranks,
        }
    }

    #[test]
    fn a_job_in_order_has_communicators_without_more() {
        let head = head(&[(1, 8, "RUNNING", "OK"), (4, 2, "RUNNING", "OK")]);
        let ras = odd(&head, "", "");
        assert_eq!(ras.nccl_version, "2.26.2");
        let job = JobSize {
            nodes: 2,
            processes: 8,
            gpus: 8,
        };
        assert_eq!((ras.job, ras.may_be_others), (Some(job), true));
        let sizes: Vec<u32> = ras.communicators.iter().map(|each| each.size).collect();
        assert_eq!(sizes, [8, 2, 2, 2, 2]);
        let of_size = |size| Communicator {
            size,
            ..Communicator::default()
        };
        assert_eq!(ras.communicators[0], of_size(8));
        // Nodes that differ: 2.26.2 has the totals in a table of their own.
        let uneven = "2.26.2 compiled\n\nJob summary\n===========\n\n  Nodes  Processes\n          per node\n\
            \x20     1          3\n      1          1\n\n         Processes         GPUs\n\
            \x20                   per process\n                 4            2\n\n\
            \x20 Nodes  Processes         GPUs\n(total)    (total)      (total)\n\
            \x20     2          4            8\n\nCommunicators... (0.00s)\n=============\n\n\
            No communicator data collected!\n";
        let ras = odd(uneven, "", "");
        let job = JobSize {
            nodes: 2,
            processes: 4,
            gpus: 8,
        };
        assert_eq!((ras.job, ras.communicators.len()), (Some(job), 0));
    }

    #[test]
    fn ranks_that_lag_are_named_and_the_others_counted() {
        let mut warnings = "#0-0 (00a079b828ff1a75) MISMATCH\n".to_owned();
        warnings += "  Communicator ranks have different AllGather operation counts\n";
        warnings += "  6 ranks have launched up to operation 3\n";
        warnings += "  2 ranks have not launched any operations\n";
        warnings += &format!("  Rank 1 -- {}\n", process(1));
        warnings += "  Rank 5 -- [process information not found]\n\n";
        warnings += "  Communicator ranks have different AllReduce operation counts\n";
        warnings += "  7 ranks have launched up to operation 1024\n";
        warnings += &format!(
            "  Rank 5 has launched up to operation 1023 -- {}\n\n",
            process(5)
        );
        let head = head(&[(1, 8, "RUNNING", "MISMATCH")]);
        let ras = odd(&head, "", &warnings);
        let [communicator] = &ras.communicators[..] else {
            panic!("{ras:?}")
        };
        assert_eq!(communicator.hash, "0xa079b828ff1a75");
        let count = |kind: &str, count| (kind.to_owned(), count);
        let named = [
            RasRank {
                member: member(1),
                async_error: 0,
                counts: vec![count("AllGather", 0)],
            },
            RasRank {
                member: Member {
                    rank: 5,
                    ..Member::default()
                },
                async_error: 0,
                counts: vec![count("AllGather", 0), count("AllReduce", 1023)],
            },
        ];
        assert_eq!(communicator.ranks, named);
        let others = [unnamed("AllGather", 3, 6), unnamed("AllReduce", 1024, 7)];
        assert_eq!(communicator.unnamed, others);
        assert_eq!(communicator.missing, []);
    }

    #[test]
    fn missing_and_dead_ranks_and_asynchronous_errors() {
        let mut errors = "INCOMPLETE\n  Missing communicator data from 1 job process\n".to_owned();
        errors += "  Process 106 on node 10.0.0.2 managing GPU 2\n\n";
        errors += "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n";
        errors += "  Process 107 on node 10.0.0.2 managing GPU 3\n\n";
        errors += "#0-0 (1) INCOMPLETE\n  Missing communicator data from 2 ranks\n";
        errors += &format!("  Rank 6 -- {}\n  Rank 7 -- {}\n\n", process(6), process(7));
        errors += "#0-0 (1) ERROR\n  Initialization error on 1 rank\n";
        errors += &format!("  Rank 2 reported System error -- {}\n", process(2));
        errors += "  Asynchronous errors on 3 ranks\n  2 ranks reported Remote process error\n";
        errors += &format!("  Rank 0 -- {}\n  Rank 1 -- {}\n", process(0), process(1));
        errors += &format!("  Rank 3 reported System error -- {}\n\n", process(3));
        let mut warnings = "TIMEOUT\n  Encountered 2 communication timeouts while gathering \
                            communicator data\n\n#1-1 (2) MISMATCH\n"
            .to_owned();
        warnings += "  Communicator ranks have different status\n";
        warnings += "  5 ranks have status NOCOMM\n  2 ranks have status RUNNING\n";
        warnings += &format!("  Rank 0 -- {}\n  Rank 1 -- {}\n", process(0), process(1));
        warnings += &format!("  Rank 2 has status FINALIZE -- {}\n", process(2));
        warnings += "#1-0 (3) MISMATCH\n  Communicator ranks have different status\n";
        warnings += "  7 ranks have status RUNNING\n";
        warnings += &format!("  Rank 4 has status NOCOMM -- {}\n", process(4));
        let rows = [
            (1, 8, "RUNNING", "INCOMPLETE,ERROR"),
            (2, 8, "RUNNING", "MISMATCH"),
        ];
        let ras = odd(&head(&rows), &errors, &warnings);
        let [first, third, second] = &ras.communicators[..] else {
            panic!("{ras:?}")
        };
        let missing = |rank, unresponsive, dead| MissingRank {
            member: member(rank),
            unresponsive,
            dead,
        };
        let silent = [missing(6, true, false), missing(7, true, true)];
        assert_eq!(first.missing, silent);
        let failed = first.ranks.iter();
        let failed: Vec<_> = failed
            .map(|rank| (rank.member.rank, rank.async_error))
            .collect();
        assert_eq!(failed, [(0, 6), (1, 6), (3, 2)]);
        assert_eq!((&*second.hash, second.unnamed_missing), ("0x2", 5));
        assert_eq!((&second.missing[..], &second.ranks[..]), (&[][..], &[][..]));
        assert_eq!((&*third.hash, third.unnamed_missing), ("0x3", 0));
        assert_eq!(third.missing, [missing(4, false, false)]);
    }

    /// NCCL 2.24.3's format strings: one number for all kinds, and lists of ranks.
    #[test]
    fn the_first_text_form() {
        let head = head(&[(1, 8, "RUNNING", "INCOMPLETE,MISMATCH")]).replace("2.26.2", "2.24.3");
        let errors = "#0-0 (1) INCOMPLETE\n  Missing communicator data from 3 ranks\n  \
                      The missing ranks: 4,5,6\n\n";
        let mut warnings = "#0-0 (1) MISMATCH\n  Communicator ranks have different status\n  \
                            4 ranks have status RUNNING\n  3 ranks have status UNKNOWN\n  \
                            The unknown ranks: 4,5,6\n"
            .to_owned();
        warnings += &format!("  Rank 7 has status FINALIZE -- {}\n", process(7));
        warnings += "  Communicator ranks have different collective operation counts\n";
        warnings += "  4 ranks have launched up to operation 6650\n";
        warnings += &format!(
            "  Rank 7 has launched up to operation 6649 -- {}\n\n",
            process(7)
        );
        let ras = odd(&head, errors, &warnings);
        let [communicator] = &ras.communicators[..] else {
            panic!("{ras:?}")
        };
        let missing = communicator.missing.iter();
        let missing: Vec<u32> = missing.map(|each| each.member.rank).collect();
        assert_eq!((missing, communicator.unnamed_missing), (vec![4, 5, 6], 0));
        // Why they are missing is not said.
        let is_known = |each: &MissingRank| each.unresponsive || each.dead || each.member.pid != 0;
        assert!(!communicator.missing.iter().any(is_known));
        assert_eq!(communicator.unnamed, [unnamed("collectives", 6650, 4)]);
        let [behind] = &communicator.ranks[..] else {
            panic!("{communicator:?}")
        };
        assert_eq!(behind.counts, [("collectives".to_owned(), 6649)]);
        // A list that NCCL cut: 1 may be what is left of 12.
        let cut = errors
            .replace("from 3", "from 300")
            .replace("4,5,6", "4,5,1");
        let ras = odd(&head, &cut, "#0-0 (1) MISMATCH\n");
        let communicator = &ras.communicators[0];
        assert_eq!(
            (communicator.missing.len(), communicator.unnamed_missing),
            (2, 298)
        );
    }

    #[test]
    fn a_text_that_is_cut_is_an_error() {
        let head = head(&[(2, 8, "RUNNING", "MISMATCH")]);
        let block = |number: u32| {
            format!(
                "#0-{number} (1) MISMATCH\n  Communicator ranks have different AllReduce operation \
                 counts\n  7 ranks have launched up to operation 2\n  Rank 5 has launched up to \
                 operation 1 -- {}\n\n",
                process(5)
            )
        };
        let text = format!(
            "{head}\nErrors\n======\n\nWarnings\n========\n\n{}{}",
            block(0),
            block(1)
        );
        assert!(parse_text(&text).is_ok());
        // Up to the heading of the last communicator, and within a line.
        let last = text.rfind('#').unwrap();
        for end in (0..last).chain([text.len() - 10]) {
            assert!(parse_text(&text[..end]).is_err(), "{}", &text[..end]);
        }
    }

    #[test]
    fn what_is_not_so_written_is_an_error_or_less() {
        let head = head(&[(1, 8, "RUNNING", "MISMATCH")]);
        for row in [
            "0 4294967295 1 1 8 8 RUNNING OK",
            "1 65536 1 1 8 8 RUNNING OK",
            "7 1 1 1 8 8 RUNNING OK",
        ] {
            let text = format!("{head}{row}\n\nErrors\n\nWarnings\n");
            assert!(parse_text(&text).is_err(), "{row}");
        }
        let many: String = (0..100)
            .map(|kind| {
                format!(
                    "  Communicator ranks have different K{kind} operation counts\n  \
                     Rank 1 has launched up to operation 1 -- GPU 0 managed by process 1 on node {}\n",
                    "é".repeat(1000)
                )
            })
            .collect();
        let ranks = vec!["1"; 100_000].join(",");
        let warnings = format!(
            "#0-0 (1) MISMATCH\n#\n#0-1 (1) MISMATCH\n#9-0 (1) MISMATCH\n#0-99999999999999999999 (\n\
             Rank 1\n  Rank\n  Rank -1 -- \n  Rank 3 -- GPU\n  -1 ranks have status NOCOMM\n  \
             99999999999 ranks have status NOCOMM\n#0-0 (1) MISMATCH\n{many}  \
             Communicator ranks have different status\n  4294967295 ranks have status UNKNOWN\n  \
             The unknown ranks: {ranks}\n  4294967295 ranks have status NOCOMM\n  Rank 1 -- é\n"
        );
        let ras = odd(&head, "", &warnings);
        let communicator = &ras.communicators[0];
        assert_eq!(communicator.ranks.len(), 1);
        let rank = &communicator.ranks[0];
        assert_eq!(
            (rank.counts.len(), rank.member.host.chars().count()),
            (MAX_KINDS, 64)
        );
        assert_eq!(communicator.missing.len(), 1);
        assert_eq!(communicator.unnamed_missing, u32::MAX);
    }
}
