//! The table of native functions.

use super::libraries::Library;
use super::native::{NativeClass, NativeRule, Pattern, Says};
use super::syscalls::Wait;
use crate::model::category::{Activity, FrameKind};
use Activity as A;
use FrameKind as K;
use Pattern::{Has, Is, Start};

const DISPATCH: Says = Says::Known {
    active: A::Dispatch,
    asleep: None,
};
const AUTOGRAD: NativeClass = NativeClass::known(A::Autograd, None, K::Autograd);
const ATEN: NativeClass = NativeClass::known(A::AtenCompute, None, K::Aten);
pub(super) const GEMM: NativeClass = NativeClass::known(A::Gemm, None, K::Gemm);
pub(super) const OMP_IDLE: NativeClass =
    NativeClass::known(A::OmpIdle, Some(A::OmpIdle), K::OpenMp);
const GPU_LAUNCH: NativeClass = NativeClass::known(A::GpuLaunch, Some(A::GpuLaunch), K::Cuda);
const GPU_SYNC: NativeClass = NativeClass::known(A::GpuSync, Some(A::GpuSync), K::Cuda);
const GPU_COPY: NativeClass = NativeClass::known(A::GpuCopy, Some(A::GpuCopy), K::Cuda);
const GPU_ALLOC: NativeClass = NativeClass::known(A::GpuAlloc, Some(A::GpuAlloc), K::Cuda);
pub(super) const COLLECTIVE: NativeClass =
    NativeClass::known(A::CollectiveCall, Some(A::CollectiveWait), K::Communication);
const COLLECTIVE_WAIT: NativeClass =
    NativeClass::known(A::CollectiveWait, Some(A::CollectiveWait), K::Communication);
const COLLECTIVE_LOOP: NativeClass = NativeClass::known(A::CollectiveCall, None, K::Communication);

/// Rows in order; the first that matches is the one. Rows for one library come before rows for all.
pub const NATIVE: &[NativeRule] = &[
    // Source: libgomp (gcc 12 libgomp/config/linux/bar.c, team.c; names from .gnu_debugdata), LLVM openmp kmp_barrier.cpp.
    // What is not in this row and lies in the library is the library's own waiting: see `default_class`.
    NativeRule {
        libraries: &[Library::OpenMp],
        patterns: &[
            Start("omp_get_"),
            Start("omp_set_"),
            Start("omp_in_"),
            Is("GOMP_parallel"),
            Is("GOMP_parallel_start"),
            Is("gomp_thread_start"),
            Is("__kmpc_fork_call"),
            Start("__kmp_invoke_"),
            Is("__kmp_launch_worker"),
            Is("__kmp_launch_thread"),
        ],
        class: NativeClass::plumbing(Says::Through(None), K::OpenMp),
    },
    // Source: CPython 3.10-3.15 Python/ceval_gil.c, Python/pystate.c. `take_gil` is inlined into its callers in many builds.
    NativeRule {
        libraries: &[Library::Python],
        patterns: &[
            Is("take_gil"),
            Is("PyEval_RestoreThread"),
            Is("PyEval_AcquireThread"),
            Is("PyEval_AcquireLock"),
            Is("PyGILState_Ensure"),
            Is("_PyThreadState_Attach"),
            Is("_Py_HandlePending"),
            Is("eval_frame_handle_pending"),
        ],
        class: NativeClass::known(A::Python, Some(A::GilWait), K::Wait),
    },
    // Source: CPython Python/thread_pthread.h, Modules/_threadmodule.c, Python/lock.c, Python/parking_lot.c (3.13 on).
    NativeRule {
        libraries: &[Library::Python],
        patterns: &[
            Start("PyThread_acquire_lock"),
            Is("acquire_timed"),
            Is("lock_PyThread_acquire_lock"),
            Is("rlock_acquire"),
            Start("_PySemaphore_Wait"),
            Start("_PyParkingLot_Park"),
            Start("_PyMutex_Lock"),
            Start("PyMutex_Lock"),
            Start("PyEvent_Wait"),
        ],
        class: NativeClass::known(A::Python, Some(A::LockWait), K::Wait),
    },
    // Source: CPython Modules/timemodule.c.
    NativeRule {
        libraries: &[Library::Python],
        patterns: &[Is("time_sleep"), Is("pysleep")],
        class: NativeClass::known(A::Python, Some(A::Sleep), K::Wait),
    },
    // Calls passed on by the interpreter. Source: CPython Objects/call.c, Objects/methodobject.c, Modules/main.c, pythonrun.c.
    NativeRule {
        libraries: &[Library::Python],
        patterns: &[
            Start("_PyEval_"),
            Start("PyEval_Eval"),
            Start("_PyObject_"),
            Start("PyObject_Call"),
            Start("PyObject_Vectorcall"),
            Start("_PyFunction_Vectorcall"),
            Start("PyVectorcall_"),
            Start("_PyVectorcall_"),
            Start("cfunction_"),
            Start("method_vectorcall"),
            Start("object_vacall"),
            Start("vectorcall_"),
            Start("slot_tp_call"),
            Is("function_code_fastcall"),
            Is("builtin_exec"),
            Start("run_mod"),
            Start("run_eval_code_obj"),
            Start("pyrun_"),
            Start("_PyRun_"),
            Start("PyRun_"),
            Start("pymain_"),
            Is("Py_RunMain"),
            Is("Py_BytesMain"),
            Is("Py_Main"),
            Is("main"),
            Is("_start"),
            Is("thread_run"),
            Is("pythread_wrapper"),
            Is("t_bootstrap"),
        ],
        class: NativeClass::plumbing(Says::Interpreter, K::Interpreter),
    },
    // Blocking input and output of the C library: `read` of cached pages runs and does not sleep. Source: nm -D libc.so.6.
    NativeRule {
        libraries: &[Library::System],
        patterns: &[
            Is("read"),
            Is("__read"),
            Is("__libc_read"),
            Is("write"),
            Is("__write"),
            Is("__libc_write"),
            Start("pread"),
            Start("__pread"),
            Start("pwrite"),
            Start("__pwrite"),
            Start("preadv"),
            Start("readv"),
            Start("writev"),
            Is("open"),
            Start("open64"),
            Start("__open64"),
            Start("openat"),
            Start("fsync"),
            Start("fdatasync"),
            Is("recv"),
            Is("__recv"),
            Start("recvfrom"),
            Start("recvmsg"),
            Is("send"),
            Is("__send"),
            Start("sendto"),
            Start("sendmsg"),
            Start("sendfile"),
            Start("copy_file_range"),
            Is("fstat64"),
            Is("stat64"),
            Is("lstat64"),
            Start("getdents"),
            Start("readdir"),
        ],
        class: NativeClass::plain(Says::Through(Some(Wait::Io)), K::Wait),
    },
    NativeRule {
        libraries: &[Library::System],
        patterns: &[
            Start("pthread_cond_wait"),
            Start("pthread_cond_timedwait"),
            Start("pthread_cond_clockwait"),
            Start("__pthread_cond_wait"),
            Is("sem_wait"),
            Is("sem_timedwait"),
            Is("sem_clockwait"),
            Start("__lll_lock_wait"),
            Start("pthread_join"),
            Start("__pthread_clockjoin"),
            Start("pthread_barrier_wait"),
            Start("std::condition_variable::wait"),
        ],
        class: NativeClass::plain(Says::Through(Some(Wait::Lock)), K::Wait),
    },
    NativeRule {
        libraries: &[Library::System],
        patterns: &[
            Is("nanosleep"),
            Start("clock_nanosleep"),
            Start("__clock_nanosleep"),
            Is("usleep"),
            Is("sleep"),
            Is("poll"),
            Is("__poll"),
            Is("ppoll"),
            Is("select"),
            Is("__select"),
            Is("pselect"),
            Start("epoll_wait"),
            Start("epoll_pwait"),
            Is("wait4"),
            Is("waitpid"),
            Is("waitid"),
            Start("accept"),
        ],
        class: NativeClass::plain(Says::Through(Some(Wait::Sleep)), K::Wait),
    },
    NativeRule {
        libraries: &[Library::System],
        patterns: &[
            Is("_start"),
            Start("__libc_start"),
            Is("start_thread"),
            Start("clone"),
            Start("__clone"),
            Is("execute_native_thread_routine"),
        ],
        class: NativeClass::plumbing(Says::Through(None), K::Native),
    },
    // Source: exports of libnccl.so.2.30 (`nccl*` and `pnccl*`); NCCL's own threads and proxies are the library's default.
    NativeRule {
        libraries: &[Library::Nccl],
        patterns: &[Start("nccl"), Start("pnccl")],
        class: COLLECTIVE,
    },
    // GPU. Source: exports of libcudart.so.13 and libcuda.so.1. First what waits, then copies, allocation, launches.
    NativeRule {
        libraries: &[],
        patterns: &[
            Start("cudaStreamSynchronize"),
            Start("cudaDeviceSynchronize"),
            Start("cudaEventSynchronize"),
            Start("cudaExecutionCtxSynchronize"),
            Start("cuStreamSynchronize"),
            Start("cuEventSynchronize"),
            Start("cuCtxSynchronize"),
            Start("c10::cuda::device_synchronize"),
            Start("c10::cuda::stream_synchronize"),
            Start("c10::cuda::memcpy_and_sync"),
            Start("at::native::_local_scalar_dense_cuda"),
        ],
        class: GPU_SYNC,
    },
    NativeRule {
        libraries: &[],
        patterns: &[
            Start("cudaMemcpy"),
            Start("cudaMemset"),
            Start("cuMemcpy"),
            Start("cuMemset"),
            Start("at::native::copy_kernel_cuda"),
        ],
        class: GPU_COPY,
    },
    NativeRule {
        libraries: &[],
        patterns: &[
            Start("cudaMalloc"),
            Start("cudaFree"),
            Start("cudaHostAlloc"),
            Start("cudaHostRegister"),
            Start("cuMemAlloc"),
            Start("cuMemFree"),
            Start("cuMemHostAlloc"),
            Start("cuMemMap"),
            Start("cuMemCreate"),
            Start("c10::cuda::CUDACachingAllocator"),
            Start("c10::cuda::CUDAMallocAsync"),
        ],
        class: GPU_ALLOC,
    },
    NativeRule {
        libraries: &[],
        patterns: &[
            Start("cudaLaunch"),
            Start("__cudaLaunch"),
            Start("cudaGraphLaunch"),
            Start("cuLaunch"),
            Start("cuGraphLaunch"),
        ],
        class: GPU_LAUNCH,
    },
    // Collectives. Source: libtorch_cpu and libtorch_cuda 2.15.0 (c10d, nccl2 is a second NCCL backend), gloo inside.
    NativeRule {
        libraries: &[],
        patterns: &[
            Start("c10d::ProcessGroupNCCL::Watchdog"),
            Start("c10d::ProcessGroupNCCL::HeartbeatMonitor"),
            Start("c10d::ProcessGroupNCCL::watchdog"),
            Start("c10d::ProcessGroupNCCL::heartbeat"),
            Start("c10d::ProcessGroupGloo::runLoop"),
            Start("c10d::detail::"),
            Start("gloo::transport::tcp::Loop::run"),
            Start("gloo::transport::uv::"),
        ],
        class: COLLECTIVE_LOOP,
    },
    NativeRule {
        libraries: &[],
        patterns: &[
            Start("c10d::ProcessGroupNCCL::WorkNCCL::wait"),
            Start("c10d::ProcessGroupNCCL::WorkNCCL::synchronize"),
            Start("c10d::nccl2::ProcessGroupNCCL::WorkNCCL::wait"),
            Start("c10d::Work::wait"),
            Start("c10d::Work::synchronize"),
            Start("c10d::ProcessGroupGloo::AsyncWork::wait"),
            Start("gloo::transport::tcp::UnboundBuffer::wait"),
            Start("gloo::transport::tcp::Buffer::wait"),
        ],
        class: COLLECTIVE_WAIT,
    },
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[
            Start("c10d::"),
            Start("gloo::"),
            Start("tensorpipe::"),
            Start("torch::distributed::"),
            Start("uv_"),
            Start("uv__"),
        ],
        class: COLLECTIVE,
    },
    // Matrix products and oneDNN. Source: libtorch_cpu 2.15.0: MKL and oneDNN are linked statically.
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[
            Start("dnnl"),
            Start("ideep::"),
            Start("mkl_"),
            Start("cblas_"),
            Start("at::native::cpublas::"),
            Start("at::native::mkldnn_bf16_gemm"),
            Start("fbgemm::"),
            Has("dnnl::impl::"),
        ],
        class: GEMM,
    },
    // Dispatcher and wrappers, before all of ATen: their template arguments name the kernels.
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[
            Start("at::_ops::"),
            Start("at::redispatch::"),
            Start("c10::Dispatcher"),
            Start("c10::impl::"),
            Start("c10::OperatorHandle"),
            Start("c10::TypedOperatorHandle"),
            Start("c10::KernelFunction"),
            Start("c10::BoxedKernel"),
            Start("at::(anonymous namespace)::wrapper_"),
            Start("at::(anonymous namespace)::(anonymous namespace)::wrapper_"),
            Start("at::functorch::"),
            Start("at::functionalization::"),
            Start("at::native::(anonymous namespace)::wrapper_"),
            Start("torch::autograd::VariableType::"),
            Start("torch::ADInplaceOrView::"),
            Start("torch::TraceType::"),
            Start("at::autocast::"),
            Start("pybind11::"),
            Start("torch::autograd::THPVariable_"),
            Start("torch::autograd::dispatch_"),
            Start("torch::autograd::TypeError_to_NotImplemented_"),
            Start("torch::PythonArg"),
            Start("torch::FunctionSignature"),
            Start("THPVariable"),
            Start("dynamo_"),
            // The C interface that inductor's C++ wrappers call operators through (torch/csrc/inductor/aoti_torch).
            Start("aoti_"),
            Start("torch::dynamo::"),
        ],
        class: NativeClass::plumbing(DISPATCH, K::Plumbing),
    },
    // Autograd. `ReadyQueue::pop` is where an idle engine thread waits.
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[Start("torch::autograd::ReadyQueue::pop")],
        class: NativeClass::known(A::Autograd, Some(A::LockWait), K::Autograd),
    },
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[
            Start("torch::autograd::python::PythonEngine"),
            Start("torch::autograd::Engine::execute"),
            Start("torch::autograd::Engine::thread_"),
            Start("torch::autograd::Engine::evaluate_function"),
            Start("torch::autograd::Node::operator()"),
            Start("THPEngine"),
            Start("std::thread::_State_impl"),
        ],
        class: NativeClass::plumbing(
            Says::Known {
                active: A::Autograd,
                asleep: None,
            },
            K::Autograd,
        ),
    },
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[Start("torch::autograd::"), Start("THPFunction")],
        class: AUTOGRAD,
    },
    // ATen. A kernel's inner loop is often a callback whose template arguments alone name it.
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[
            Start("at::native::"),
            Start("at::cpu::"),
            Start("at::cuda::"),
            Start("at::meta::"),
            Start("at::internal::"),
            Start("at::TensorIterator"),
            Start("at::vec::"),
            Start("at::sparse"),
            Start("Sleef_"),
            Start("_ZGV"),
            Start("pytorch_q"),
            Start("xnn_"),
            Start("nnp_"),
            Start("pthreadpool_"),
            Start("sdp::"),
            Has("at::native::"),
            Has("at::TensorIterator"),
        ],
        class: ATEN,
    },
    NativeRule {
        libraries: &[Library::Torch],
        patterns: &[
            Start("at::"),
            Start("ska::"),
            Start("c10::"),
            Start("torch::"),
        ],
        class: NativeClass::plain(Says::TorchOther, K::Aten),
    },
];
