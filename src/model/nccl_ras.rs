//! What NCCL's RAS subsystem reports: how many collectives each rank of each communicator has
//! launched, and which ranks are missing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An answer of one RAS socket, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RasAnswer {
    /// Where it was asked: `localhost:28028`.
    pub address: String,
    /// A reason in a few words, where it did not answer.
    pub ras: Result<Ras, String>,
}

/// A job, as its NCCL sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ras {
    pub nccl_version: String,
    /// Only the text form has it.
    pub job: Option<JobSize>,
    /// Whether it may be another job's: the text form need not name any process.
    pub may_be_others: bool,
    pub communicators: Vec<Communicator>,
}

/// How large a job is.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct JobSize {
    pub nodes: u32,
    pub processes: u32,
    pub gpus: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Communicator {
    /// NCCL's hash of it: `0xae94423cfbb2ef4a`. Empty where the text form reports nothing odd.
    pub hash: String,
    /// Number of its ranks.
    pub size: u32,
    /// The text form names only ranks that are odd, with what is odd about them.
    pub ranks: Vec<RasRank>,
    /// Ranks that the text form counts and does not name.
    pub unnamed: Vec<UnnamedRanks>,
    /// Ranks of which RAS has no data.
    pub missing: Vec<MissingRank>,
    /// How many more of them there are, which the text form does not name.
    pub unnamed_missing: u32,
}

/// Ranks without names that have launched equally many collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnnamedRanks {
    /// Its kind: `AllReduce`.
    pub collective: String,
    pub launched: u64,
    /// How many they are.
    pub ranks: u32,
}

/// Whose rank it is.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Hash, Serialize)]
pub struct Member {
    /// The rank in the communicator.
    pub rank: u32,
    /// Address of NCCL's network interface there, not a name. Empty where NCCL does not know it.
    pub host: String,
    /// As its process sees it, which in a container is another one than outside; as torchspy sees
    /// it where `is_here`. 0 where NCCL does not know it.
    pub pid: i32,
    /// Whether it is a process of the machine that was asked, and of its dump or recording.
    #[serde(rename = "here")]
    pub is_here: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RasRank {
    pub member: Member,
    /// What `ncclCommGetAsyncError` would return; 0 is success.
    pub async_error: i32,
    /// Collectives that were launched, by kind: `AllReduce`; `collectives` of all kinds together
    /// before NCCL 2.26.
    pub counts: Vec<(String, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRank {
    pub member: Member,
    /// RAS did not reach it.
    pub unresponsive: bool,
    /// RAS has given it up.
    pub dead: bool,
}

/// What NCCL reported while a recording was made and no step ended.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct KeptRas {
    /// When it was asked, ns of the host's CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// One for each RAS socket of the machine.
    pub answers: Vec<RasSummary>,
}

/// What is odd in an answer.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct RasSummary {
    /// Where it was asked: `localhost:28028`.
    pub address: String,
    /// Why there is no answer.
    pub error: Option<String>,
    pub nccl_version: String,
    /// Null with NCCL 2.28.7 and later, whose JSON does not have it.
    #[serde(default)]
    pub job: Option<JobSize>,
    /// Whether it may be another job's answer: NCCL before 2.28.7 names only ranks that are odd,
    /// and none of them is a process of the dump or recording.
    #[serde(default)]
    pub may_be_others: bool,
    /// How many communicators the job has.
    pub communicators: u64,
    /// In how many of them something is odd that NCCL says in words which are not read.
    #[serde(default)]
    pub unread: u64,
    /// Missing ranks and errors first.
    pub findings: Vec<RasFinding>,
    /// Further findings, which are not listed.
    pub more: u64,
}

/// Something that is odd in a communicator.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct RasFinding {
    /// NCCL's hash of the communicator.
    pub hash: String,
    /// Ranks in the communicator.
    pub size: u32,
    pub what: RasFact,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RasFact {
    /// Ranks that have launched another number of one kind of collective than most.
    Counts {
        collective: String,
        /// Fewest ranks first.
        odd: Vec<OddRanks>,
        /// Number that most have launched, and how many these are.
        most: u64,
        others: u64,
    },
    /// A rank without data.
    Missing {
        member: Member,
        /// RAS did not reach it.
        unresponsive: bool,
        /// RAS has given it up.
        dead: bool,
    },
    /// Ranks without data that NCCL counts and does not name.
    MissingUnnamed { ranks: u64 },
    /// A rank with an asynchronous error, an `ncclResult_t`.
    Error { member: Member, code: i32 },
}

/// Ranks that have launched equally many collectives.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub struct OddRanks {
    pub launched: u64,
    /// How many they are.
    pub ranks: u64,
    /// The first of them that NCCL names.
    pub members: Vec<Member>,
}

impl RasFinding {
    /// The ranks that it is about, as far as they are listed.
    pub fn members(&self) -> Vec<&Member> {
        match &self.what {
            RasFact::Counts { odd, .. } => odd.iter().flat_map(|each| &each.members).collect(),
            RasFact::Missing { member, .. } | RasFact::Error { member, .. } => vec![member],
            RasFact::MissingUnnamed { .. } => Vec::new(),
        }
    }

    fn members_mut(&mut self) -> Vec<&mut Member> {
        match &mut self.what {
            RasFact::Counts { odd, .. } => {
                odd.iter_mut().flat_map(|each| &mut each.members).collect()
            }
            RasFact::Missing { member, .. } | RasFact::Error { member, .. } => vec![member],
            RasFact::MissingUnnamed { .. } => Vec::new(),
        }
    }
}

impl KeptRas {
    /// As a recording holds it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the result of [`text`](Self::text); `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Changes every address.
    pub fn replace_hosts(&mut self, mut new: impl FnMut(&str) -> String) {
        for answer in &mut self.answers {
            answer.address = new(&answer.address);
            for member in answer.findings.iter_mut().flat_map(RasFinding::members_mut) {
                member.host = new(&member.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_has_no_addresses_if_they_are_replaced() {
        let member = Member {
            rank: 1,
            host: "10.0.0.1".to_owned(),
            ..Member::default()
        };
        let odd = OddRanks {
            launched: 4,
            ranks: 1,
            members: vec![member.clone()],
        };
        let counts = RasFact::Counts {
            collective: "AllReduce".to_owned(),
            odd: vec![odd],
            most: 5,
            others: 3,
        };
        let facts = [counts, RasFact::Error { member, code: 6 }];
        let findings = facts.map(|what| RasFinding {
            hash: "0x1".to_owned(),
            size: 4,
            what,
        });
        let mut kept = KeptRas {
            time_ns: 5,
            answers: vec![RasSummary {
                address: "10.0.0.1:28028".to_owned(),
                findings: findings.to_vec(),
                ..RasSummary::default()
            }],
        };
        assert_eq!(KeptRas::parse(&kept.text()).as_ref(), Some(&kept));
        assert_eq!(KeptRas::parse("x"), None);
        kept.replace_hosts(|_| "host".to_owned());
        let text = kept.text();
        assert!(
            !text.contains("10.0") && text.contains("AllReduce"),
            "{text}"
        );
    }
}
