//! Collectives: which functions issue one or wait for one, on whose behalf, and by which backend.
//!
//! | function | tells | source (torch 2.15.0) |
//! |---|---|---|
//! | functions of `distributed_c10d.py`, `_functional_collectives.py` | the collective | the files themselves |
//! | `c10d::ops::…::NAME_KEY`, `c10d::ProcessGroup*::NAME` | the collective, and the backend by the group's class | c10d/Ops.cpp, ProcessGroup*.hpp |
//! | `ncclAllReduce`, … | the collective; NCCL | exports of libnccl.so.2.30 |
//! | `gloo::` | Gloo | nm -C libtorch_cpu |
//! | `c10d::Reducer::`, `torch/nn/parallel/distributed.py` | DDP, and what it is about | c10d/reducer.cpp |
//! | `torch/distributed/fsdp/` | FSDP: unshard, reshard, reduce | `_flat_param.py`, `_runtime_utils.py`, `_fully_shard/` |

use super::phases::{has_path, last_part};
use crate::model::collective::{Backend, CollectivePart, Issuer};
use crate::torch::symbol_name::SymbolName;

/// Names by beginning, once underscores are taken out; the first that matches. c10d's C++ says `allreduce`, its Python
/// `all_reduce`, NCCL `AllReduce`.
const NAMES: &[(&str, &str)] = &[
    ("allreduce", "all_reduce"),
    ("allgatherobject", "all_gather_object"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcastobjectlist", "broadcast_object_list"),
    ("broadcast", "broadcast"),
    ("monitoredbarrier", "monitored_barrier"),
    ("storebasedbarrier", "barrier"),
    ("barrier", "barrier"),
    ("gatherobject", "gather_object"),
    ("gather", "gather"),
    ("scatterobjectlist", "scatter_object_list"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("batchisendirecv", "batch_isend_irecv"),
    ("sendobjectlist", "send_object_list"),
    ("recvobjectlist", "recv_object_list"),
    ("isend", "send"),
    ("irecv", "recv"),
    ("send", "send"),
    ("recv", "recv"),
    ("waittensor", "wait_tensor"),
    ("initprocessgroup", "init_process_group"),
    ("newgroup", "new_group"),
    ("newsubgroups", "new_group"),
    ("splitgroup", "new_group"),
    ("destroyprocessgroup", "destroy_process_group"),
];

fn collective_name(name: &str) -> Option<&'static str> {
    let plain: String = name
        .chars()
        .filter(|&each| each != '_')
        .map(|each| each.to_ascii_lowercase())
        .collect();
    NAMES
        .iter()
        .find(|(start, _)| plain.starts_with(start))
        .map(|&(_, name)| name)
}

/// Files whose functions are named after the collectives that they run.
const COLLECTIVE_FILES: &[&str] = &[
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/nn/functional.py",
];

use Issuer::{
    Checkpoint, DdpBucket, DdpBuffers, DdpStart, FsdpReduce, FsdpReshard, FsdpUnshard,
    SyncBatchNorm,
};

/// Python functions: file, beginning of the last part of the name (`*` for all). First match.
const PYTHON: &[(&str, &str, Issuer)] = &[
    ("torch/nn/parallel/distributed.py", "__init__", DdpStart),
    (
        "torch/nn/parallel/distributed.py",
        "_ddp_init_helper",
        DdpStart,
    ),
    (
        "torch/nn/parallel/distributed.py",
        "_sync_buffers",
        DdpBuffers,
    ),
    (
        "torch/nn/parallel/distributed.py",
        "_sync_module_buffers",
        DdpBuffers,
    ),
    (
        "torch/nn/parallel/distributed.py",
        "_default_broadcast_coalesced",
        DdpBuffers,
    ),
    (
        "torch/nn/parallel/distributed.py",
        "_distributed_broadcast_coalesced",
        DdpBuffers,
    ),
    (
        "torch/nn/parallel/distributed.py",
        "_delayed_all_reduce_hook",
        DdpBucket,
    ),
    (
        "torch/distributed/algorithms/ddp_comm_hooks/",
        "*",
        DdpBucket,
    ),
    (
        "torch/distributed/utils.py",
        "_sync_module_states",
        DdpStart,
    ),
    // FSDP: `_fully_shard/` since 2.6, `_composable/fsdp/` before; the flat one all along.
    ("_fsdp_param_group.py", "unshard", FsdpUnshard),
    ("_fsdp_param_group.py", "wait_for_unshard", FsdpUnshard),
    ("_fsdp_param_group.py", "_prefetch_unshard", FsdpUnshard),
    ("_fsdp_param_group.py", "reshard", FsdpReshard),
    ("_fsdp_param_group.py", "post_backward", FsdpReduce),
    ("_fsdp_param_group.py", "finalize_backward", FsdpReduce),
    (
        "_fsdp_param_group.py",
        "_wait_for_post_backward",
        FsdpReduce,
    ),
    ("_fsdp_collectives.py", "foreach_all_gather", FsdpUnshard),
    ("_fsdp_collectives.py", "foreach_reduce", FsdpReduce),
    (
        "torch/distributed/fsdp/_flat_param.py",
        "unshard",
        FsdpUnshard,
    ),
    (
        "torch/distributed/fsdp/_flat_param.py",
        "pre_unshard",
        FsdpUnshard,
    ),
    (
        "torch/distributed/fsdp/_flat_param.py",
        "_all_gather_flat_param",
        FsdpUnshard,
    ),
    (
        "torch/distributed/fsdp/_flat_param.py",
        "post_unshard",
        FsdpUnshard,
    ),
    (
        "torch/distributed/fsdp/_flat_param.py",
        "reshard",
        FsdpReshard,
    ),
    (
        "torch/distributed/fsdp/_flat_param.py",
        "post_reshard",
        FsdpReshard,
    ),
    (
        "torch/distributed/fsdp/_runtime_utils.py",
        "_unshard",
        FsdpUnshard,
    ),
    (
        "torch/distributed/fsdp/_runtime_utils.py",
        "_reshard",
        FsdpReshard,
    ),
    (
        "torch/distributed/fsdp/_runtime_utils.py",
        "_post_backward_reshard",
        FsdpReshard,
    ),
    (
        "torch/distributed/fsdp/_runtime_utils.py",
        "_reduce_grad",
        FsdpReduce,
    ),
    (
        "torch/distributed/fsdp/_runtime_utils.py",
        "_post_backward_hook",
        FsdpReduce,
    ),
    ("torch/nn/modules/_functions.py", "*", SyncBatchNorm),
    ("torch/distributed/checkpoint/", "*", Checkpoint),
];

/// Native functions of DDP, by the beginning of the qualified name. First match.
const NATIVE: &[(&str, Issuer)] = &[
    ("c10d::Reducer::all_reduce_", DdpBucket),
    ("c10d::Reducer::run_comm_hook", DdpBucket),
    ("c10d::Reducer::run_allreduce_hook", DdpBucket),
    ("c10d::Reducer::delay_all_reduce", DdpBucket),
    ("c10d::Reducer::finalize_backward", DdpBucket),
    ("c10d::Reducer::Reducer", DdpStart),
    ("c10d::Reducer::", Issuer::DdpReducer),
    ("c10d::verify_params_across_processes", DdpStart),
];

/// Backends by the beginning of the qualified name.
const BACKENDS: &[(&str, Backend)] = &[
    ("c10d::ProcessGroupGloo", Backend::Gloo),
    ("gloo::", Backend::Gloo),
    ("c10d::ProcessGroupNCCL", Backend::Nccl),
    ("c10d::nccl2::", Backend::Nccl),
    ("nccl", Backend::Nccl),
    ("pnccl", Backend::Nccl),
    ("c10d::ProcessGroupMPI", Backend::Mpi),
    ("MPI_", Backend::Mpi),
    ("c10d::ProcessGroupUCC", Backend::Ucc),
];

/// Threads that only one backend has, by the beginning of their name. Source: strings of the torch 2.15.0 binaries.
pub const BACKEND_THREADS: &[(&str, Backend)] =
    &[("pt_gloo_", Backend::Gloo), ("pt_nccl_", Backend::Nccl)];

/// What a Python function tells.
pub fn python_part(file: &str, function: &str) -> CollectivePart {
    let last = last_part(function);
    let issuer = PYTHON
        .iter()
        .find(|(part, name, _)| (*name == "*" || last.starts_with(name)) && has_path(file, part))
        .map(|&(_, _, issuer)| issuer);
    let named = COLLECTIVE_FILES.iter().any(|part| has_path(file, part));
    CollectivePart {
        name: named.then(|| collective_name(last)).flatten(),
        backend: None,
        issuer,
        imports: file.starts_with("<frozen importlib"),
    }
}

/// What a native function tells, by its demangled name.
pub fn native_part(name: &str) -> CollectivePart {
    let name = SymbolName::parse(name);
    let backend = BACKENDS
        .iter()
        .find(|(start, _)| name.qualified.starts_with(start))
        .map(|&(_, backend)| backend);
    let issuer = NATIVE
        .iter()
        .find(|(start, _)| name.qualified.starts_with(start))
        .map(|&(_, issuer)| issuer);
    CollectivePart {
        name: native_name(name, backend),
        backend,
        issuer,
        imports: false,
    }
}

fn native_name(name: SymbolName<'_>, backend: Option<Backend>) -> Option<&'static str> {
    let stem = name.stem;
    for start in ["pnccl", "nccl"] {
        if let Some(call) = stem.strip_prefix(start).filter(|call| !call.contains(':')) {
            return collective_name(call);
        }
    }
    if let Some(call) = stem.strip_prefix("MPI_") {
        return collective_name(call.strip_prefix('I').unwrap_or(call));
    }
    let last = stem.rsplit("::").next().unwrap_or(stem);
    let of_group = backend.is_some() || stem.starts_with("c10d::ProcessGroup::");
    let issues = stem.starts_with("c10d::ops::") || (of_group && stem.starts_with("c10d::"));
    issues.then(|| collective_name(last)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(symbol: &str) -> (Option<&'static str>, Option<Backend>) {
        let part = native_part(symbol);
        (part.name, part.backend)
    }

    /// Names as nm -C prints them for libtorch_cpu.so and libtorch_cuda.so 2.15.0, and nm -D for libnccl.so.2.
    #[test]
    fn native_collectives_are_named() {
        let gloo = Some(Backend::Gloo);
        let nccl = Some(Backend::Nccl);
        for (symbol, wanted) in [
            (
                "c10d::ops::(anonymous namespace)::allreduce_CPU(c10::ArrayRef<at::Tensor>)",
                (Some("all_reduce"), None),
            ),
            (
                "c10d::ProcessGroupGloo::allreduce(std::vector<at::Tensor>&, c10d::AllreduceOptions const&)",
                (Some("all_reduce"), gloo),
            ),
            (
                "c10d::ProcessGroupGloo::all_gather_single(at::Tensor&, at::Tensor&)",
                (Some("all_gather"), gloo),
            ),
            (
                "c10d::ProcessGroupNCCL::_reduce_scatter_base(at::Tensor&, at::Tensor&)",
                (Some("reduce_scatter"), nccl),
            ),
            ("ncclAllReduce", (Some("all_reduce"), nccl)),
            ("ncclGroupEnd", (None, nccl)),
            (
                "gloo::transport::tcp::UnboundBuffer::waitRecv(int*)",
                (None, gloo),
            ),
            (
                "c10d::ProcessGroupGloo::AsyncWork::execute(int)",
                (None, gloo),
            ),
            (
                "c10d::Work::wait(std::chrono::duration<long>)",
                (None, None),
            ),
            ("at::native::scatter(at::Tensor)", (None, None)),
        ] {
            assert_eq!(name(symbol), wanted, "{symbol}");
        }
    }

    #[test]
    fn python_collectives_are_named() {
        let file = "/e/site-packages/torch/distributed/distributed_c10d.py";
        for (function, wanted) in [
            ("all_reduce", Some("all_reduce")),
            ("all_gather_into_tensor", Some("all_gather")),
            ("reduce_scatter_tensor", Some("reduce_scatter")),
            ("all_gather_object", Some("all_gather_object")),
            ("barrier", Some("barrier")),
            ("_get_default_group", None),
            ("get_rank", None),
        ] {
            assert_eq!(python_part(file, function).name, wanted, "{function}");
        }
        assert_eq!(python_part("/home/u/comm.py", "all_reduce").name, None);
    }

    #[test]
    fn wrappers_are_told_apart() {
        let fsdp = "/e/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py";
        let issuer = |file, function| python_part(file, function).issuer;
        assert_eq!(issuer(fsdp, "FSDPParamGroup.unshard"), Some(FsdpUnshard));
        assert_eq!(issuer(fsdp, "FSDPParamGroup.reshard"), Some(FsdpReshard));
        assert_eq!(
            issuer(fsdp, "FSDPParamGroup.post_backward"),
            Some(FsdpReduce)
        );
        assert_eq!(issuer(fsdp, "FSDPParamGroup.pre_forward"), None);
        let reducer = |symbol| native_part(symbol).issuer;
        assert_eq!(
            reducer("c10d::Reducer::all_reduce_bucket(c10d::Reducer::Bucket&)"),
            Some(DdpBucket)
        );
        assert_eq!(
            reducer("c10d::Reducer::autograd_hook(unsigned long)"),
            Some(Issuer::DdpReducer)
        );
    }
}
