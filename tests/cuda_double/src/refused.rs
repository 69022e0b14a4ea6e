//! What torch links and the double does not have: each refuses, and leaves its name in the log.

use crate::call::refuse;
use std::ffi::c_int;

macro_rules! refused {
    ($status:expr; $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            refuse(stringify!($name));
            $status
        }
    )*};
}

// cudaErrorNotSupported.
refused! { 801;
    cudaDeviceGetDefaultMemPool cudaDeviceGetGraphMemAttribute cudaDeviceSetGraphMemAttribute
    cudaFreeAsync cudaGraphAddNode cudaGraphConditionalHandleCreate cudaGraphNodeGetDependencies
    cudaIpcCloseMemHandle cudaIpcGetEventHandle cudaIpcGetMemHandle cudaIpcOpenEventHandle
    cudaIpcOpenMemHandle cudaKernelSetAttributeForDevice cudaLibraryGetGlobal cudaLibraryGetKernel
    cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction
    cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload cudaMallocAsync
    cudaMemPoolGetAttribute cudaMemPoolSetAccess cudaMemPoolSetAttribute cudaMemPoolTrimTo
    cudaStreamAddCallback cudaStreamBeginCaptureToGraph cudaStreamUpdateCaptureDependencies
}

// CUBLAS_STATUS_NOT_SUPPORTED.
refused! { 15;
    cublasDotEx
    cublasCgelsBatched cublasDgelsBatched cublasSgelsBatched cublasZgelsBatched
    cublasCgeqrfBatched cublasDgeqrfBatched cublasSgeqrfBatched cublasZgeqrfBatched
    cublasCgetrfBatched cublasDgetrfBatched cublasSgetrfBatched cublasZgetrfBatched
    cublasCgetrsBatched cublasDgetrsBatched cublasSgetrsBatched cublasZgetrsBatched
    cublasCtrsmBatched cublasDtrsmBatched cublasStrsmBatched cublasZtrsmBatched
    cublasCtrsm_v2 cublasDtrsm_v2 cublasStrsm_v2 cublasZtrsm_v2
    cublasLtMatmulAlgoCheck cublasLtMatmulAlgoConfigGetAttribute
    cublasLtMatmulAlgoConfigSetAttribute cublasLtMatmulAlgoInit
}

// ncclInvalidUsage.
refused! { 5;
    ncclCommGetUniqueId ncclCommGrow ncclCommMemStats
    ncclCommResume ncclCommRevoke ncclCommSuspend ncclCommWindowDeregister ncclCommWindowRegister
    ncclDevCommCreate ncclDevCommDestroy ncclGetLsaMultimemDevicePointer ncclGetPeerDevicePointer
    ncclGroupSimulateEnd ncclPutSignal ncclSignal ncclWaitSignal ncclWinGetUserPtr
}
