//! Where trainers keep their device meshes and parallel groups: classes, attributes and variables.

/// The class of a device mesh. Source: torch/distributed/device_mesh.py, 2.2 to 2.15 (before 2.2:
/// torch/distributed/_tensor/device_mesh.py).
pub const MESH: &str = "DeviceMesh";
/// Names of the dimensions, a tuple of strings or None: the attribute from about 2.10 on, and
/// before.
pub const MESH_NAMES: &[&str] = &["_mesh_dim_names", "mesh_dim_names"];
/// What a mesh without names calls its dimensions: `_init_process_groups`, 2.15.
pub const UNNAMED_DIMENSION: &str = "dim_";
/// Ranks of the mesh in row-major order, a tuple of ints; the same two ranges of versions.
pub const MESH_RANKS: &[&str] = &["_flatten_rank_map", "_flatten_mesh_list"];
/// Where the process is along each dimension, a list or tuple of ints; None if it is not in the
/// mesh. All versions.
pub const MESH_COORDINATES: &str = "_coordinate_on_dim";
/// The mesh that it was sliced from, from 2.9 on; None if it was not.
pub const MESH_ROOT: &str = "_root_mesh";
/// A tensor with the ranks, whose shape is that of the mesh: up to 2.9 or so; a property
/// afterwards.
pub const MESH_TENSOR: &str = "mesh";
/// The sizes: `_MeshLayout` (torch/distributed/_mesh_layout.py). 2.15: a tuple of `_FlatLayout`s,
/// each with a tuple of sizes; before that a tuple of ints, or an int.
pub const MESH_LAYOUT: &str = "_layout";
/// See [`MESH_LAYOUT`].
pub const LAYOUT_AXES: &str = "axes";
/// See [`MESH_LAYOUT`].
pub const LAYOUT_SHAPE: &str = "shape";

/// A parameter that is distributed over a mesh, and its slot that leads to it by its attribute
/// [`SPEC_MESH`]. Source: torch/distributed/tensor/_api.py, _dtensor_spec.py (2.15); the same
/// classes from 2.0 on.
pub const DISTRIBUTED_TENSOR: &str = "DTensor";
/// See [`DISTRIBUTED_TENSOR`].
pub const SPEC: &str = "DTensorSpec";
/// See [`DISTRIBUTED_TENSOR`].
pub const SPEC_MESH: &str = "mesh";

/// The module of Megatron Core that has the process's parallel groups in global variables.
pub const PARALLEL_STATE: &str = "megatron.core.parallel_state";
/// Dimensions, outermost first, and the variables with the ranks of the process's own group along
/// each: a list of ints, None until `initialize_model_parallel`. `dp` is without `cp`; `ep` divides
/// the ranks of a stage anew. The default order of the ranks is "tp-cp-ep-dp-pp", innermost first.
/// Source: megatron/core/parallel_state.py of megatron-core 0.16.1.
pub const PARALLEL_GROUPS: &[(&str, &str)] = &[
    ("pp", "_PIPELINE_GLOBAL_RANKS"),
    ("dp", "_DATA_PARALLEL_GLOBAL_RANKS"),
    ("cp", "_CONTEXT_PARALLEL_GLOBAL_RANKS"),
    ("ep", "_EXPERT_MODEL_PARALLEL_RANKS"),
    ("tp", "_TENSOR_MODEL_PARALLEL_GLOBAL_RANKS"),
];
