//! Which family a native module belongs to, by its file name.

use crate::model::module::ModuleKind;

/// A family of native modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// libtorch and its parts.
    Torch,
    /// The interpreter and its C modules.
    Python,
    /// The C library, the C++ runtime, the loader, the vDSO.
    System,
    /// An OpenMP runtime.
    OpenMp,
    /// BLAS libraries.
    Blas,
    /// CUDA runtime, driver and libraries.
    Cuda,
    /// NCCL.
    Nccl,
    /// MPI and network libraries under collectives.
    Fabric,
    /// Memory without a file.
    Anonymous,
    /// C++ that inductor wrote and compiled.
    Inductor,
    /// Any other file.
    Other,
}

/// Beginnings of file names. First match. Source: the files of the torch 2.15.0+cu132, numpy 2.4 and nvidia-* wheels,
/// and of Debian's libc6, libgomp1, libopenmpi3, libibverbs1 and libucx0.
const FILE_NAMES: &[(&str, Library)] = &[
    ("libtorch", Library::Torch),
    ("libc10", Library::Torch),
    ("libshm", Library::Torch),
    ("libcaffe2", Library::Torch),
    ("libpython", Library::Python),
    ("python", Library::Python),
    ("libgomp", Library::OpenMp),
    ("libiomp5", Library::OpenMp),
    ("libomp", Library::OpenMp),
    ("libnccl", Library::Nccl),
    ("libscipy_openblas", Library::Blas),
    ("libopenblas", Library::Blas),
    ("libmkl_", Library::Blas),
    ("libblis", Library::Blas),
    ("libblas", Library::Blas),
    ("liblapack", Library::Blas),
    ("libcublas", Library::Cuda),
    ("libcuda", Library::Cuda),
    ("libcudnn", Library::Cuda),
    ("libcufft", Library::Cuda),
    ("libcusolver", Library::Cuda),
    ("libcusparse", Library::Cuda),
    ("libcupti", Library::Cuda),
    ("libcufile", Library::Cuda),
    ("libnvrtc", Library::Cuda),
    ("libnvJitLink", Library::Cuda),
    ("libnvidia-", Library::Cuda),
    ("libnvToolsExt", Library::Cuda),
    ("libnvtx", Library::Cuda),
    ("libmpi", Library::Fabric),
    ("libopen-pal", Library::Fabric),
    ("libopen-rte", Library::Fabric),
    ("libucp.", Library::Fabric),
    ("libucs.", Library::Fabric),
    ("libuct.", Library::Fabric),
    ("libucm.", Library::Fabric),
    ("libibverbs", Library::Fabric),
    ("libmlx5", Library::Fabric),
    ("librdmacm", Library::Fabric),
    ("libfabric", Library::Fabric),
    ("libc.so", Library::System),
    ("libc-2.", Library::System),
    ("libm.so", Library::System),
    ("libm-2.", Library::System),
    ("libpthread", Library::System),
    ("libdl.so", Library::System),
    ("libdl-2.", Library::System),
    ("librt.so", Library::System),
    ("librt-2.", Library::System),
    ("libutil.so", Library::System),
    ("libmvec", Library::System),
    ("ld-linux", Library::System),
    ("ld-2.", Library::System),
    ("ld-musl", Library::System),
    ("libstdc++", Library::System),
    ("libgcc_s", Library::System),
    ("libc++", Library::System),
    ("libgfortran", Library::System),
    ("libquadmath", Library::System),
    ("libjemalloc", Library::System),
    ("libtcmalloc", Library::System),
    ("libmimalloc", Library::System),
    ("libnuma", Library::System),
    // Hashes of `hashlib`, whose callers are C modules of Python's own library.
    ("libcrypto", Library::System),
];

/// C modules of Python's own library lie here (CPython, Makefile.pre.in: `DESTSHARED`).
const PYTHON_C_MODULES: &str = "/lib-dynload/";

/// The family of a module.
pub fn library(kind: ModuleKind, path: &str) -> Library {
    match kind {
        ModuleKind::Vdso => return Library::System,
        ModuleKind::Anonymous => return Library::Anonymous,
        ModuleKind::File => {}
    }
    if path.contains(PYTHON_C_MODULES) {
        return Library::Python;
    }
    let name = file_name(path);
    if is_of_inductor(name) {
        return Library::Inductor;
    }
    FILE_NAMES
        .iter()
        .find(|(start, _)| name.starts_with(start))
        .map_or(Library::Other, |&(_, library)| library)
}

/// Whether inductor named a file, wherever its cache is (`TORCHINDUCTOR_CACHE_DIR`): after a hash of what is in it, 51 letters and digits
/// behind a `c`. Source: torch 2.15.0, torch/_inductor/codecache.py, `get_path` and `sha256_hash`.
pub fn is_of_inductor(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    let is_hash = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    stem.len() == 52 && stem.starts_with('c') && stem.bytes().all(is_hash)
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_real_paths() {
        let cases = [
            ("/x/torch/lib/libtorch_cpu.so", Library::Torch),
            ("/x/torch/lib/libtorch_cuda.so", Library::Torch),
            ("/x/torch/lib/libc10_cuda.so", Library::Torch),
            ("/usr/lib/x86_64-linux-gnu/libcuda.so.570.1", Library::Cuda),
            ("/x/nvidia/cu13/lib/libcudart.so.13", Library::Cuda),
            ("/x/nvidia/nccl/lib/libnccl.so.2", Library::Nccl),
            ("/x/torch/lib/libgomp.so.1", Library::OpenMp),
            ("/usr/bin/python3.11", Library::Python),
            ("/x/lib/python3.11/lib-dynload/_pickle.so", Library::Python),
            ("/lib/x86_64-linux-gnu/libc.so.6", Library::System),
            ("/lib64/ld-linux-x86-64.so.2", Library::System),
            (
                "/x/numpy.libs/libscipy_openblas64_-32a4b2a6.so",
                Library::Blas,
            ),
            ("/x/numpy/_core/_multiarray_umath.so", Library::Other),
            ("/x/triton/_C/libtriton.so", Library::Other),
            ("", Library::Other),
        ];
        for (path, wanted) in cases {
            assert_eq!(library(ModuleKind::File, path), wanted, "{path}");
        }
        assert_eq!(library(ModuleKind::Vdso, "[vdso]"), Library::System);
        assert_eq!(library(ModuleKind::Anonymous, "x"), Library::Anonymous);
    }
}
