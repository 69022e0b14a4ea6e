//! cuBLAS and cuBLASLt: handles, and products that take a device the time that their shape says.

use crate::call::run;
use crate::model::{Work, current_device, issue, node, wait};
use gpu_node::node::Use;
use std::ffi::{c_int, c_void};

/// `CUBLAS_STATUS_INVALID_VALUE`, `CUBLAS_STATUS_EXECUTION_FAILED`.
const INVALID_VALUE: c_int = 7;
const FAILED: c_int = 13;

/// What is behind a `cublasHandle_t`.
#[derive(Default)]
pub struct Handle {
    stream: usize,
    math: c_int,
    on_device: c_int,
}

/// A product of an m x k and a k x n matrix, so many times.
fn product(name: &'static str, stream: usize, m: u64, n: u64, k: u64, batch: u64) -> c_int {
    let gpu = &node().scenario.gpus[node().visible[current_device()]];
    let flops = 2.0 * m as f64 * n as f64 * k as f64 * batch as f64;
    let us = 3.0 + flops / gpu.tflops / 1e6;
    let bytes = 4.0 * batch as f64 * (m * k + k * n + m * n) as f64;
    let used = Use {
        multiprocessors: 0.9,
        memory: (bytes / gpu.gb_s / 1000.0 / us).min(0.9) as f32,
    };
    crate::device::use_device(current_device());
    match issue(name, stream, Work::new("gemm", us, used)) {
        Ok(()) => 0,
        Err(_) => FAILED,
    }
}

/// Functions of cuBLAS: their status is what the block says.
macro_rules! blas {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let mut status = 0;
            run(stringify!($name), || {
                let result: c_int = $body;
                status = result;
                Ok(())
            });
            status
        }
    )*};
}

macro_rules! with {
    ($handle:ident) => {
        // SAFETY: a handle is what cublasCreate_v2 gave.
        match unsafe { $handle.as_mut() } {
            Some(handle) => handle,
            None => return Ok(()),
        }
    };
}

/// GEMMs whose arguments are of one kind.
macro_rules! gemms {
    ($($name:ident $batched:ident;)*) => {blas! {$(
        fn $name(
            handle: *mut Handle, _ta: c_int, _tb: c_int, m: c_int, n: c_int, k: c_int,
            _alpha: *const c_void, _a: *const c_void, _lda: c_int, _b: *const c_void, _ldb: c_int,
            _beta: *const c_void, _c: *mut c_void, _ldc: c_int,
        ) {
            let handle = with!(handle);
            product(stringify!($name), handle.stream, m as u64, n as u64, k as u64, 1)
        }

        fn $batched(
            handle: *mut Handle, _ta: c_int, _tb: c_int, m: c_int, n: c_int, k: c_int,
            _alpha: *const c_void, _a: *const c_void, _lda: c_int, _stride_a: i64,
            _b: *const c_void, _ldb: c_int, _stride_b: i64, _beta: *const c_void,
            _c: *mut c_void, _ldc: c_int, _stride_c: i64, batch: c_int,
        ) {
            let handle = with!(handle);
            product(stringify!($batched), handle.stream, m as u64, n as u64, k as u64, batch as u64)
        }
    )*}};
}

gemms! {
    cublasSgemm_v2 cublasSgemmStridedBatched;
    cublasDgemm_v2 cublasDgemmStridedBatched;
    cublasCgemm_v2 cublasCgemmStridedBatched;
    cublasZgemm_v2 cublasZgemmStridedBatched;
}

/// Products of a matrix and a vector, and of two vectors.
macro_rules! vectors {
    ($($gemv:ident)*; $($dot:ident)*) => {blas! {
        $(fn $gemv(
            handle: *mut Handle, _t: c_int, m: c_int, n: c_int, _alpha: *const c_void, _a: *const c_void,
            _lda: c_int, _x: *const c_void, _incx: c_int, _beta: *const c_void, _y: *mut c_void, _incy: c_int,
        ) {
            let handle = with!(handle);
            product(stringify!($gemv), handle.stream, m as u64, 1, n as u64, 1)
        })*

        $(fn $dot(
            handle: *mut Handle, n: c_int, _x: *const c_void, _incx: c_int, _y: *const c_void,
            _incy: c_int, result: *mut c_void,
        ) {
            let handle = with!(handle);
            let stream = handle.stream;
            let status = product(stringify!($dot), stream, 1, 1, n as u64, 1);
            if handle.on_device == 0 {
                // The result is on the host: the call returns when it is there.
                wait(stringify!($dot), |model| model.end_of(stream))?;
                // SAFETY: the caller gives a place of at least this size.
                unsafe { result.cast::<u32>().write_unaligned(0) };
            }
            status
        })*
    }};
}

vectors! {
    cublasSgemv_v2 cublasDgemv_v2 cublasCgemv_v2 cublasZgemv_v2;
    cublasSdot_v2 cublasDdot_v2 cublasCdotu_v2 cublasCdotc_v2 cublasZdotu_v2 cublasZdotc_v2
}

blas! {
    fn cublasCreate_v2(out: *mut *mut Handle) {
        crate::device::use_device(current_device());
        // SAFETY: the caller gives a place.
        unsafe { out.write(Box::into_raw(Box::default())) };
        0
    }

    fn cublasDestroy_v2(handle: *mut Handle) {
        if !handle.is_null() {
            // SAFETY: made by cublasCreate_v2, and given back once.
            drop(unsafe { Box::from_raw(handle) });
        }
        0
    }

    fn cublasSetStream_v2(handle: *mut Handle, stream: usize) {
        with!(handle).stream = stream;
        0
    }

    fn cublasSetWorkspace_v2(_handle: *mut Handle, _workspace: *mut c_void, _bytes: usize) { 0 }
    fn cublasSetSmCountTarget(_handle: *mut Handle, _count: c_int) { 0 }

    fn cublasSetMathMode(handle: *mut Handle, mode: c_int) {
        with!(handle).math = mode;
        0
    }

    fn cublasGetMathMode(handle: *mut Handle, out: *mut c_int) {
        let math = with!(handle).math;
        // SAFETY: the caller gives a place.
        unsafe { out.write(math) };
        0
    }

    fn cublasSetPointerMode_v2(handle: *mut Handle, mode: c_int) {
        with!(handle).on_device = mode;
        0
    }

    fn cublasGetPointerMode_v2(handle: *mut Handle, out: *mut c_int) {
        let mode = with!(handle).on_device;
        // SAFETY: the caller gives a place.
        unsafe { out.write(mode) };
        0
    }

    fn cublasGemmEx(
        handle: *mut Handle, _ta: c_int, _tb: c_int, m: c_int, n: c_int, k: c_int,
        _alpha: *const c_void, _a: *const c_void, _a_type: c_int, _lda: c_int,
        _b: *const c_void, _b_type: c_int, _ldb: c_int, _beta: *const c_void,
        _c: *mut c_void, _c_type: c_int, _ldc: c_int, _compute: c_int, _algorithm: c_int,
    ) {
        let handle = with!(handle);
        product("cublasGemmEx", handle.stream, m as u64, n as u64, k as u64, 1)
    }

    fn cublasSgemmEx(
        handle: *mut Handle, _ta: c_int, _tb: c_int, m: c_int, n: c_int, k: c_int,
        _alpha: *const c_void, _a: *const c_void, _a_type: c_int, _lda: c_int,
        _b: *const c_void, _b_type: c_int, _ldb: c_int, _beta: *const c_void,
        _c: *mut c_void, _c_type: c_int, _ldc: c_int,
    ) {
        let handle = with!(handle);
        product("cublasSgemmEx", handle.stream, m as u64, n as u64, k as u64, 1)
    }

    fn cublasGemmStridedBatchedEx(
        handle: *mut Handle, _ta: c_int, _tb: c_int, m: c_int, n: c_int, k: c_int,
        _alpha: *const c_void, _a: *const c_void, _a_type: c_int, _lda: c_int, _stride_a: i64,
        _b: *const c_void, _b_type: c_int, _ldb: c_int, _stride_b: i64, _beta: *const c_void,
        _c: *mut c_void, _c_type: c_int, _ldc: c_int, _stride_c: i64, batch: c_int, _compute: c_int, _algorithm: c_int,
    ) {
        let handle = with!(handle);
        product("cublasGemmStridedBatchedEx", handle.stream, m as u64, n as u64, k as u64, batch as u64)
    }
}

/// What is behind a `cublasLtMatrixLayout_t`.
pub struct Layout {
    rows: u64,
    columns: u64,
    batch: i32,
}

/// What is behind a `cublasLtMatmulDesc_t`.
#[derive(Default)]
pub struct Product {
    transposed_a: bool,
}

/// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`, `CUBLASLT_MATMUL_DESC_TRANSA`.
const BATCH_COUNT: c_int = 5;
const TRANSA: c_int = 3;

blas! {
    fn cublasLtMatrixLayoutCreate(out: *mut *mut Layout, _kind: c_int, rows: u64, columns: u64, _leading: i64) {
        let layout = Layout { rows, columns, batch: 1 };
        // SAFETY: the caller gives a place.
        unsafe { out.write(Box::into_raw(Box::new(layout))) };
        0
    }

    fn cublasLtMatrixLayoutSetAttribute(layout: *mut Layout, attribute: c_int, value: *const c_void, bytes: usize) {
        if attribute == BATCH_COUNT && bytes == 4 {
            // SAFETY: the layout is ours, and the value has that many bytes.
            unsafe { (*layout).batch = value.cast::<i32>().read_unaligned() };
        }
        0
    }

    fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) {
        // SAFETY: made by cublasLtMatrixLayoutCreate, and given back once.
        drop(unsafe { Box::from_raw(layout) });
        0
    }

    fn cublasLtMatmulDescCreate(out: *mut *mut Product, _compute: c_int, _scale: c_int) {
        // SAFETY: the caller gives a place.
        unsafe { out.write(Box::into_raw(Box::default())) };
        0
    }

    fn cublasLtMatmulDescSetAttribute(product: *mut Product, attribute: c_int, value: *const c_void, _bytes: usize) {
        if attribute == TRANSA {
            // SAFETY: the description is ours, and the value is an operation.
            unsafe { (*product).transposed_a = value.cast::<i32>().read_unaligned() != 0 };
        }
        0
    }

    fn cublasLtMatmulDescDestroy(product: *mut Product) {
        // SAFETY: made by cublasLtMatmulDescCreate, and given back once.
        drop(unsafe { Box::from_raw(product) });
        0
    }

    fn cublasLtMatmulPreferenceCreate(out: *mut *mut u64) {
        // SAFETY: the caller gives a place.
        unsafe { out.write(Box::into_raw(Box::default())) };
        0
    }

    fn cublasLtMatmulPreferenceSetAttribute(_preference: *mut u64, _attribute: c_int, _value: *const c_void, _bytes: usize) { 0 }

    fn cublasLtMatmulPreferenceDestroy(preference: *mut u64) {
        // SAFETY: made by cublasLtMatmulPreferenceCreate, and given back once.
        drop(unsafe { Box::from_raw(preference) });
        0
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        _light: *mut c_void, _product: *mut c_void, _a: *mut c_void, _b: *mut c_void, _c: *mut c_void,
        _d: *mut c_void, _preference: *mut c_void, wanted: c_int, out: *mut c_void, count: *mut c_int,
    ) {
        // `cublasLtMatmulHeuristicResult_t`: an algorithm of 64 bytes, the workspace, a status,
        // waves and four reserved words. All zeros is one that works.
        if wanted > 0 {
            // SAFETY: the caller gives places for as many as it wants.
            unsafe { out.cast::<[u8; 96]>().write_unaligned([0; 96]) };
        }
        // SAFETY: the caller gives a place.
        unsafe { count.write(wanted.min(1)) };
        0
    }

    fn cublasLtMatmul(
        _light: *mut c_void, product_of: *const Product, _alpha: *const c_void, _a: *const c_void, a_layout: *const Layout,
        _b: *const c_void, _b_layout: *const Layout, _beta: *const c_void, _c: *const c_void, c_layout: *const Layout,
        _d: *mut c_void, _d_layout: *const Layout, _algorithm: *const c_void, _workspace: *mut c_void,
        _bytes: usize, stream: usize,
    ) {
        // SAFETY: they are ours.
        match unsafe { (product_of.as_ref(), a_layout.as_ref(), c_layout.as_ref()) } {
            (Some(of), Some(a), Some(c)) => {
                let k = if of.transposed_a { a.rows } else { a.columns };
                product("cublasLtMatmul", stream, c.rows, c.columns, k, c.batch.max(1) as u64)
            }
            _ => INVALID_VALUE,
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    130_200
}
