//! The place of a process in its job, from its environment and its command line.

use crate::model::dump::JobKey;
use crate::model::parallel::USERS_MESH;
use std::path::Path;

/// Variables in which a job sets the rank of a process: (rank, world size, local rank); the first
/// that is set wins. Sources: torch/distributed/run.py (2.15.0), srun(1) "output environment
/// variables", Open MPI 5 docs `OMPI_*`, PMI-1 as set by MPICH hydra and Intel MPI, MVAPICH2 guide,
/// HPE PALS (mpiexec(1) of cray-pals), flux-environment(7).
const RANKS: &[(&str, &str, &str)] = &[
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
    ),
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
];

/// Variables with the number of the node; the first that is set wins. `GROUP_RANK` and
/// `PET_NODE_RANK`: torchrun (torch/distributed/run.py, argparse_util.py); `NODE_RANK`: Lightning;
/// `JOB_COMPLETION_INDEX`: the pod of an indexed job of Kubernetes, which may hold several ranks.
const NODES: &[&str] = &[
    "GROUP_RANK",
    "NODE_RANK",
    "PET_NODE_RANK",
    "SLURM_NODEID",
    "PALS_NODEID",
    "JOB_COMPLETION_INDEX",
];

/// Variables with a name of the job that is the same for all of its ranks; the first that is set
/// wins. `TORCHSPY_JOB` is for the user. Batch systems come before launchers, which run in their
/// jobs. Sources besides those above: qsub(1) of PBS, bsub(1) of LSF, `PMIX_NAMESPACE` of PMIx 4
/// (pmix_client.c), `OMPI_MCA_ess_base_jobid` of Open MPI 4 (odls_base_default_fns.c),
/// `kEnvVarKeyJobId` of Ray 2 (src/ray/common/constants.h).
const JOBS: &[&str] = &[
    USERS_JOB,
    SLURMS_JOB,
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "TORCHELASTIC_RUN_ID",
    "PET_RDZV_ID",
    "PALS_APID",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    RAYS_JOB,
];

/// See [`JOBS`].
const SLURMS_JOB: &str = "SLURM_JOB_ID";

/// See [`JOBS`].
const RAYS_JOB: &str = "RAY_JOB_ID";

/// The user's own name of a job.
pub const USERS_JOB: &str = "TORCHSPY_JOB";

/// What is no name: torchrun's where it was given none (torch/distributed/run.py, `--rdzv-id`), and
/// Ray's in workers that were started before their job (`JobID::Nil`, src/ray/common/id.h).
const NO_JOBS: &[&str] = &["none", "ffffffff"];

/// Options of torchrun for the name of the job, and the number of the node.
const JOB_OPTIONS: &[&str] = &["--rdzv-id", "--rdzv_id"];
const NODE_OPTIONS: &[&str] = &["--node-rank", "--node_rank"];

/// Words of a command line that starts ranks. Sources: setup.py of torch 2.15.0 (entry points),
/// accelerate 1.15, deepspeed; Open MPI 4.1 and MPICH 4.0 as Debian 12 installs them, whose
/// `mpirun` is one of these by update-alternatives, and MPICH's proxy on each node.
const LAUNCHERS: &[&str] = &[
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch/distributed/run.py",
    "torch/distributed/launch.py",
    "accelerate",
    "deepspeed",
    "mpirun",
    "mpiexec",
    "mpirun.openmpi",
    "mpiexec.openmpi",
    "orterun",
    "mpirun.mpich",
    "mpiexec.mpich",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "srun",
];

/// Shells, whose `-c` holds a command line.
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh"];

/// The place of a process in its job, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPlace {
    /// A name of the job that all of its ranks have.
    pub job: Option<String>,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    /// The rank among those of its node.
    pub local_rank: Option<u32>,
    /// The number of its node.
    pub node: Option<u32>,
    /// The launcher that it is: it starts ranks, and has none itself.
    pub launcher: Option<String>,
}

impl JobPlace {
    /// The place of a process with this environment that runs this command.
    pub fn of(environment: &[(String, String)], command: &[String]) -> Self {
        let variables =
            |names: &'static [&str]| names.iter().filter_map(|name| value(environment, name));
        let job = || job_ids(environment).into_iter().next();
        let node = || variables(NODES).find_map(number);
        let Some(launcher) = launcher(command) else {
            let (rank, world_size, local_rank) = ranks(environment);
            return Self {
                job: job(),
                rank,
                world_size,
                local_rank,
                node: node(),
                launcher: None,
            };
        };
        let given_job = option(command, JOB_OPTIONS).map(str::to_owned);
        let given_node = option(command, NODE_OPTIONS).and_then(number);
        Self {
            job: job().or(given_job),
            node: given_node.or_else(node),
            launcher: Some(launcher.to_owned()),
            ..Self::default()
        }
    }
}

/// All ids of a job in a process's environment, in the order of [`JOBS`].
pub fn job_ids(environment: &[(String, String)]) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for id in JOBS.iter().filter_map(|name| value(environment, name)) {
        if !NO_JOBS.contains(&id) && !id.is_empty() && !ids.iter().any(|known| known == id) {
            ids.push(id.to_owned());
        }
    }
    ids
}

/// The id by which Slurm knows the job of a process.
pub fn slurm_job(environment: &[(String, String)]) -> Option<&str> {
    value(environment, SLURMS_JOB).filter(|id| !id.is_empty())
}

/// What tells the job of a process from other jobs; `None` if its environment says nothing.
///
/// Ranks of one job may name the host where they meet differently: it counts only where no id does.
pub fn job_key(environment: &[(String, String)]) -> Option<JobKey> {
    let mut ids = job_ids(environment);
    let port = value(environment, "MASTER_PORT");
    // Some workers of a job of Ray have its id, others were started before it: it counts only where
    // there is nothing else.
    if port.is_some() || ids.len() > 1 {
        let of_ray = value(environment, RAYS_JOB);
        ids.retain(|id| Some(id.as_str()) != of_ray);
    }
    let host = value(environment, "MASTER_ADDR").filter(|_| ids.is_empty());
    let address = port.map(|port| match host {
        Some(host) => format!("{host}:{port}"),
        None => format!("port {port}"),
    });
    let (_, world_size, _) = ranks(environment);
    let is_known = address.is_some() || !ids.is_empty();
    is_known.then_some(JobKey {
        ids,
        address,
        world_size,
    })
}

/// Rank, world size and local rank, from the environment.
pub(super) fn ranks(environment: &[(String, String)]) -> (Option<u32>, Option<u32>, Option<u32>) {
    let read = |name: &str| value(environment, name).and_then(number);
    let Some((_, rank)) = rank_variable(environment) else {
        return (None, None, None);
    };
    // What sets the rank may leave the rest to the batch system: Slurm with PMIx or PMI-2.
    let same = || {
        RANKS
            .iter()
            .filter(move |(variable, _, _)| read(variable) == Some(rank))
    };
    let size = same().find_map(|(_, size, _)| read(size));
    let local = same().find_map(|(_, _, local)| read(local));
    (Some(rank), size, local)
}

/// The variable that sets the rank, and the rank.
pub fn rank_variable(environment: &[(String, String)]) -> Option<(&'static str, u32)> {
    RANKS
        .iter()
        .find_map(|&(variable, _, _)| Some((variable, number(value(environment, variable)?)?)))
}

/// All variables that are read.
pub fn variables() -> impl Iterator<Item = &'static str> {
    let ranks = RANKS
        .iter()
        .flat_map(|&(rank, size, local)| [rank, size, local]);
    ranks
        .chain(NODES.iter().chain(JOBS).copied())
        .chain([USERS_MESH])
}

fn value<'e>(environment: &'e [(String, String)], name: &str) -> Option<&'e str> {
    let (_, value) = environment.iter().find(|(key, _)| key == name)?;
    Some(value.trim())
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// The value of one of a launcher's own options: `--rdzv-id 42`, `--rdzv-id=42`.
fn option<'c>(command: &'c [String], names: &[&str]) -> Option<&'c str> {
    // What follows the script is the script's own.
    let own = command.split(|word| word.ends_with(".py")).next()?;
    let after = own.iter().skip(1).map(Some).chain([None]);
    own.iter().zip(after).find_map(|(word, next)| {
        names
            .iter()
            .find_map(|name| match word.strip_prefix(name)? {
                "" => next.map(String::as_str),
                rest => rest.strip_prefix('='),
            })
    })
}

/// Whether the first words of a command line name a launcher: the rest are the program's own
/// arguments.
pub(super) fn is_launcher_command(command: &[String]) -> bool {
    launcher_among(first_words(command)).is_some()
}

/// The words of a command line up to the script, at most four.
fn first_words(command: &[String]) -> impl Iterator<Item = &str> {
    let script = command.iter().position(|word| word.ends_with(".py"));
    let count = script.map_or(4, |at| (at + 1).min(4));
    command.iter().take(count).map(String::as_str)
}

/// The launcher that a command line starts, also by a shell: `bash -c 'source env; torchrun …'`.
fn launcher(command: &[String]) -> Option<&str> {
    launcher_among(first_words(command)).or_else(|| {
        let program = Path::new(command.first()?).file_name()?.to_str()?;
        let is_shell = SHELLS.contains(&program);
        let script = command.iter().skip(1).find(|word| word.contains(' '));
        let words = script
            .filter(|_| is_shell)?
            .split(|letter: char| letter.is_whitespace() || ";&|()\"'".contains(letter));
        launcher_among(words)
    })
}

fn launcher_among<'c>(words: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    words.into_iter().find_map(|word| {
        let name = word.rsplit('/').next().unwrap_or(word);
        let is = |launcher: &str| {
            name == launcher || (launcher.contains('/') && word.ends_with(launcher))
        };
        LAUNCHERS
            .iter()
            .any(|launcher| is(launcher))
            .then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(text: &str) -> Vec<(String, String)> {
        let pairs = text.split_whitespace().map(|word| word.split_once('='));
        pairs
            .map(|pair| {
                let (name, value) = pair.unwrap();
                (name.to_owned(), value.to_owned())
            })
            .collect()
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn place(variables: &str, command: &str) -> JobPlace {
        JobPlace::of(&environment(variables), &words(command))
    }

    /// What launchers and batch systems set: job, rank, world size, local rank, node.
    #[test]
    fn each_system_sets_its_variables() {
        type Expected = (Option<&'static str>, [Option<u32>; 4]);
        let cases: &[(&str, Expected)] = &[
            ("", (None, [None; 4])),
            (
                "SLURM_JOB_ID=42 SLURM_PROCID=9 SLURM_NTASKS=16 SLURM_LOCALID=1 SLURM_NODEID=2",
                (Some("42"), [Some(9), Some(16), Some(1), Some(2)]),
            ),
            (
                "TORCHELASTIC_RUN_ID=run7 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 GROUP_RANK=1",
                (Some("run7"), [Some(5), Some(8), Some(1), Some(1)]),
            ),
            // torchrun in a job of Slurm: the ranks are torchrun's, the name is the job's.
            (
                "SLURM_JOB_ID=42 SLURM_PROCID=1 SLURM_NODEID=1 TORCHELASTIC_RUN_ID=none \
                 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 GROUP_RANK=1",
                (Some("42"), [Some(5), Some(8), Some(1), Some(1)]),
            ),
            (
                "TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 GROUP_RANK=0",
                (None, [Some(0), Some(2), Some(0), Some(0)]),
            ),
            (
                "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                 PMIX_RANK=3 PMIX_NAMESPACE=prterun-a-77@1 OMPI_COMM_WORLD_NODE_RANK=1",
                (Some("prterun-a-77@1"), [Some(3), Some(4), Some(1), None]),
            ),
            (
                "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0",
                (None, [Some(2), Some(4), Some(0), None]),
            ),
            // Slurm with PMIx: the rest is Slurm's.
            (
                "PMIX_RANK=3 SLURM_JOB_ID=42 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1",
                (Some("42"), [Some(3), Some(4), Some(1), None]),
            ),
            (
                "PALS_RANKID=6 PALS_LOCAL_RANKID=2 PALS_NODEID=1 PALS_APID=aa-1 PMI_RANK=6 \
                 PMI_SIZE=12 PBS_JOBID=8.host",
                (Some("8.host"), [Some(6), Some(12), Some(2), Some(1)]),
            ),
            (
                "FLUX_JOB_ID=f1 FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1",
                (Some("f1"), [Some(1), Some(2), Some(1), None]),
            ),
            ("RAY_JOB_ID=01000000", (Some("01000000"), [None; 4])),
            ("RAY_JOB_ID=ffffffff", (None, [None; 4])),
            (
                "TORCHSPY_JOB=mine JOB_COMPLETION_INDEX=3 RANK=3",
                (Some("mine"), [Some(3), None, None, Some(3)]),
            ),
            ("RANK=x SLURM_PROCID=1", (None, [Some(1), None, None, None])),
        ];
        for (variables, (job, numbers)) in cases {
            let found = place(variables, "python train.py");
            assert_eq!(found.job.as_deref(), *job, "{variables}");
            let found = [found.rank, found.world_size, found.local_rank, found.node];
            assert_eq!(found, *numbers, "{variables}");
        }
    }

    #[test]
    fn a_launcher_has_no_rank_of_its_own() {
        let slurm = "SLURM_JOB_ID=42 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1";
        for (command, launcher) in [
            ("torchrun --nproc-per-node 2 train.py", "torchrun"),
            (
                "python3 -m torch.distributed.run train.py",
                "torch.distributed.run",
            ),
            ("/opt/bin/python -u /opt/bin/torchrun train.py", "torchrun"),
            ("mpirun -n 4 python train.py", "mpirun"),
        ] {
            let found = place(slurm, command);
            assert_eq!(found.launcher.as_deref(), Some(launcher), "{command}");
            assert_eq!(
                (found.rank, found.world_size, found.local_rank),
                (None, None, None)
            );
            assert_eq!((found.job.as_deref(), found.node), (Some("42"), Some(1)));
        }
        let script = ["bash", "-c", "source env.sh; exec torchrun train.py"].map(str::to_owned);
        let found = JobPlace::of(&environment(slurm), &script);
        assert_eq!(
            (found.launcher.as_deref(), found.rank),
            (Some("torchrun"), None)
        );
        for command in [
            "bash run.sh",
            "python train.py torchrun",
            "python a b c torchrun",
        ] {
            assert_eq!(place(slurm, command).rank, Some(1), "{command}");
        }
    }

    #[test]
    fn torchruns_own_options_name_job_and_node() {
        let found = place(
            "",
            "torchrun --rdzv-id=run7 --node-rank 3 train.py --rdzv-id 9",
        );
        assert_eq!((found.job.as_deref(), found.node), (Some("run7"), Some(3)));
        let found = place("", "torchrun --rdzv_id run7 --standalone train.py");
        assert_eq!((found.job.as_deref(), found.node), (Some("run7"), None));
        let found = place("", "torchrun train.py --rdzv-id 9 --node-rank 1");
        assert_eq!((found.job, found.node), (None, None));
        assert_eq!(place("", "torchrun --rdzv-id").job, None);
    }

    #[test]
    fn ranks_of_ray_are_of_one_job_with_and_without_its_id() {
        let key = |job: &str| {
            let variables = format!("{job} MASTER_ADDR=a MASTER_PORT=1 RANK=0 WORLD_SIZE=2");
            job_key(&environment(&variables)).unwrap()
        };
        let keys = ["RAY_JOB_ID=01000000", "RAY_JOB_ID=ffffffff"].map(key);
        assert!(keys[0].agrees(&keys[1]) && keys[0].address.as_deref() == Some("a:1"));
        let given = key("RAY_JOB_ID=01000000 TORCHSPY_JOB=mine");
        assert_eq!(given.ids, ["mine"]);
        let alone = job_key(&environment("RAY_JOB_ID=01000000")).unwrap();
        assert_eq!(alone.ids, ["01000000"]);
    }
}
