//! A profile like that of a real training run: a CNN on the CPU, two OpenMP threads, autograd,
//! DataLoader workers.

use super::{At, Builder, MS, rank};
use torchspy::model::category::{Activity, FrameKind, Phase};
use torchspy::model::frame::Partial;
use torchspy::model::ids::{FunctionId, ThreadId};
use torchspy::model::profile::{Profile, Role};

const TORCH: &str = "/opt/venv/lib/python3.11/site-packages/torch";
const CPU: &str = "/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so";
const PYTHON: &str = "/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_python.so";

struct Code {
    module: FunctionId,
    epoch: FunctionId,
    resnet: FunctionId,
    call: FunctionId,
    conv_py: FunctionId,
    relu_py: FunctionId,
    binding: FunctionId,
    dispatcher: FunctionId,
    conv: FunctionId,
    onednn: FunctionId,
    relu: FunctionId,
    parallel: FunctionId,
    backward_py: FunctionId,
    engine: FunctionId,
    node: FunctionId,
    next: FunctionId,
    poll: FunctionId,
    step: FunctionId,
    adam: FunctionId,
    omp_wait: FunctionId,
    item: FunctionId,
    eval: FunctionId,
    worker_loop: FunctionId,
    decode: FunctionId,
    jpeg: FunctionId,
}

fn code(b: &mut Builder) -> Code {
    use FrameKind as K;
    let py = |b: &mut Builder, name: &str, file: &str, line, kind| {
        b.python(name, &file.replace("$", TORCH), line, kind)
    };
    let long = "at::native::(anonymous namespace)::cpu_kernel_vec<true, at::native::relu_lambda(at::TensorIteratorBase&)::{lambda(float)#1}, \
                at::native::relu_lambda(at::TensorIteratorBase&)::{lambda(at::vec::Vectorized<float>)#2}, std::integer_sequence<unsigned long, 0ul, 1ul> >"
        .repeat(3);
    Code {
        module: b.python("<module>", "/home/ada/project/train.py", 1, K::PythonUser),
        epoch: b.python("train_epoch", "/home/ada/project/train.py", 40, K::PythonUser),
        resnet: b.python("ResNet.forward", "/home/ada/project/models/resnet.py", 200, K::PythonUser),
        call: py(b, "Module._call_impl", "$/nn/modules/module.py", 1770, K::PythonTorch),
        conv_py: py(b, "Conv2d.forward", "$/nn/modules/conv.py", 553, K::PythonTorch),
        relu_py: py(b, "relu", "$/nn/functional.py", 1700, K::PythonTorch),
        binding: b.native("torch::autograd::THPVariable_conv2d(_object*, _object*, _object*)", "THPVariable_conv2d", PYTHON, K::Plumbing),
        dispatcher: b.native("c10::Dispatcher::callBoxed(c10::OperatorHandle const&)", "c10::Dispatcher::callBoxed", CPU, K::Plumbing),
        conv: b.native("at::_ops::conv2d::call(at::Tensor const&, at::Tensor const&)", "at::_ops::conv2d::call", CPU, K::Aten),
        onednn: b.native("dnnl::impl::cpu::x64::brgemm_convolution_fwd_t<(dnnl::impl::cpu::x64::cpu_isa_t)7>::execute_forward_all(dnnl::impl::exec_ctx_t const&) const", "brgemm_convolution_fwd_t::execute_forward_all", CPU, K::Gemm),
        relu: b.native(&long, "at::native::cpu_kernel_vec", CPU, K::Aten),
        parallel: b.native("GOMP_parallel", "GOMP_parallel", "/usr/lib/libgomp.so.1", K::OpenMp),
        backward_py: py(b, "_engine_run_backward", "$/autograd/graph.py", 820, K::Autograd),
        engine: b.native("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "Engine::thread_main", CPU, K::Autograd),
        node: b.native("torch::autograd::generated::ConvolutionBackward0::apply(std::vector<at::Tensor>&&)", "ConvolutionBackward0::apply", CPU, K::Autograd),
        next: py(b, "_MultiProcessingDataLoaderIter._next_data", "$/utils/data/dataloader.py", 1450, K::DataLoader),
        poll: b.native("poll", "poll", "/usr/lib/libc.so.6", K::Wait),
        step: py(b, "Optimizer.profile_hook_step.<locals>.wrapper", "$/optim/optimizer.py", 480, K::Optimizer),
        adam: py(b, "_multi_tensor_adam", "$/optim/adam.py", 560, K::Optimizer),
        omp_wait: b.native("gomp_team_barrier_wait_end", "gomp_team_barrier_wait_end", "/usr/lib/libgomp.so.1", K::Wait),
        item: b.native("at::native::_local_scalar_dense_cpu(at::Tensor const&)", "_local_scalar_dense_cpu", CPU, K::Aten),
        eval: b.native("_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so", K::Interpreter),
        worker_loop: py(b, "_worker_loop", "$/utils/data/_utils/worker.py", 230, K::DataLoader),
        decode: b.python("ImageFolder.__getitem__", "/opt/venv/lib/python3.11/site-packages/torchvision/datasets/folder.py", 240, K::PythonLibrary),
        jpeg: b.native("decode_mcu", "decode_mcu", "/opt/venv/lib/libjpeg.so.62", K::Native),
    }
}

/// About 40 steps of 250 ms.
pub fn training() -> Profile {
    let mut b = Builder::new("python train.py --model resnet18 --batch-size 64 --workers 2");
    b.profile.run.host = "gpu-node-17".to_owned();
    let trainer = b.process(rank(0), 4242);
    let main = b.thread(trainer, 4242, "python", true);
    let pools: Vec<ThreadId> = (1..=2)
        .map(|n| b.thread(trainer, 4242 + n, "python", false))
        .collect();
    let engine = b.thread(trainer, 4250, "pt_autograd_0", false);
    let workers: Vec<ThreadId> = (0..2)
        .map(|number| {
            let pid = 4300 + number as i32;
            let process = b.process(
                Role::DataLoaderWorker {
                    number,
                    trainer: Some(trainer),
                },
                pid,
            );
            b.thread(process, pid, "pt_data_worker", true)
        })
        .collect();
    let c = code(&mut b);
    for step in 0..40_u64 {
        main_step(&mut b, &c, main, step);
        for &pool in &pools {
            let root = At::Native(c.parallel);
            b.sample(
                pool,
                70 * MS,
                &[root, At::Native(c.onednn)],
                Phase::Forward,
                Activity::Gemm,
            )
            .queue_ns = 4 * MS;
            b.sample(
                pool,
                180 * MS,
                &[root, At::Native(c.omp_wait)],
                Phase::Forward,
                Activity::OmpIdle,
            );
        }
        b.sample(
            engine,
            40 * MS,
            &[At::Native(c.engine), At::Native(c.node)],
            Phase::Backward,
            Activity::Autograd,
        );
        b.sample(
            engine,
            210 * MS,
            &[At::Native(c.engine), At::Native(c.poll)],
            Phase::Backward,
            Activity::LockWait,
        );
        for &worker in &workers {
            let loop_at = At::Python(c.worker_loop, 340);
            b.sample(
                worker,
                110 * MS,
                &[loop_at, At::Python(c.decode, 245), At::Native(c.jpeg)],
                Phase::Input,
                Activity::NativeOther,
            );
            b.sample(
                worker,
                140 * MS,
                &[loop_at, At::Native(c.poll)],
                Phase::Input,
                Activity::Sleep,
            );
        }
    }
    b.build()
}

fn main_step(b: &mut Builder, c: &Code, main: ThreadId, step: u64) {
    let at = |line| vec![At::Python(c.module, 96), At::Python(c.epoch, line)];
    let with = |line, rest: &[At]| [at(line), rest.to_vec()].concat();
    let (ms, forward) = (MS, Phase::Forward);
    b.sample(
        main,
        30 * ms,
        &with(42, &[At::Python(c.next, 1462), At::Native(c.poll)]),
        Phase::Input,
        Activity::Sleep,
    );
    let model = [
        At::Python(c.call, 1786),
        At::Python(c.resnet, 210 + (step % 4) as u32),
        At::Python(c.call, 1786),
    ];
    let conv = [
        &model[..],
        &[
            At::Python(c.conv_py, 554),
            At::Native(c.binding),
            At::Native(c.dispatcher),
            At::Native(c.conv),
        ],
    ]
    .concat();
    b.sample(main, 10 * ms, &with(44, &conv), forward, Activity::Dispatch);
    let gemm = [&conv[..], &[At::Native(c.onednn)]].concat();
    b.sample(main, 50 * ms, &with(44, &gemm), forward, Activity::Gemm)
        .queue_ns = 6 * ms;
    let relu = [
        &model[..],
        &[
            At::Python(c.relu_py, 1704),
            At::Native(c.dispatcher),
            At::Native(c.relu),
        ],
    ]
    .concat();
    b.sample(
        main,
        20 * ms,
        &with(44, &relu),
        forward,
        Activity::AtenCompute,
    );
    let engine = [
        At::Python(c.backward_py, 829),
        At::Native(c.engine),
        At::Native(c.node),
    ];
    b.sample(
        main,
        70 * ms,
        &with(46, &[&engine[..], &[At::Native(c.onednn)]].concat()),
        Phase::Backward,
        Activity::Gemm,
    );
    b.sample(
        main,
        15 * ms,
        &with(46, &engine),
        Phase::Backward,
        Activity::Autograd,
    );
    b.sample(
        main,
        20 * ms,
        &with(
            47,
            &[
                At::Python(c.step, 487),
                At::Python(c.adam, 600),
                At::Guessed(c.relu),
            ],
        ),
        Phase::Optimizer,
        Activity::AtenCompute,
    );
    b.sample(
        main,
        10 * ms,
        &with(49, &[At::Native(c.item)]),
        Phase::User,
        Activity::AtenCompute,
    );
    b.sample(
        main,
        15 * ms,
        &with(50, &[At::Native(c.eval)]),
        Phase::User,
        Activity::Python,
    );
    b.sample(
        main,
        10 * ms,
        &[At::Partial(Partial::NoUnwindInfo), At::Native(c.onednn)],
        forward,
        Activity::Gemm,
    );
}
