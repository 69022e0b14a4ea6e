//! Graphs: what a captured stream is given becomes their nodes, and a launch runs them in a row.

use crate::call::{Error, INVALID, put};
use crate::model::{Work, issue, model, node};
use gpu_node::node::Use;
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
}

#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
    /// All of it as one piece of work.
    fn work(&self) -> Work {
        let us: f64 = self.nodes.iter().map(|node| node.work.us).sum();
        let mean = |part: fn(&Use) -> f32| {
            let parts = self.nodes.iter();
            let sum: f64 = parts
                .map(|node| f64::from(part(&node.work.used)) * node.work.us)
                .sum();
            (sum / us.max(f64::MIN_POSITIVE)) as f32
        };
        Work {
            name: node().name("graph"),
            us,
            used: Use {
                multiprocessors: mean(|used| used.multiprocessors),
                memory: mean(|used| used.memory),
            },
        }
    }
}

fn instantiate(graph: usize) -> Result<usize, Error> {
    let mut model = model();
    let graph = model.graphs.get(&graph).ok_or(INVALID)?.clone();
    let handle = model.handle();
    model.graphs.insert(handle, graph);
    Ok(handle)
}

calls! {
    fn cudaStreamBeginCapture(stream: usize, _mode: c_int) {
        let mut model = model();
        let graph = model.handle();
        let stream = model.stream(stream)?;
        if stream.capture.is_some() {
            // cudaErrorIllegalState
            return Err(Error(401));
        }
        stream.capture = Some(graph);
        model.graphs.insert(graph, Graph::default());
    }

    fn cudaStreamEndCapture(stream: usize, out: *mut usize) {
        let mut model = model();
        // cudaErrorIllegalState
        let graph = model.stream(stream)?.capture.ok_or(Error(401))?;
        for stream in model.streams.values_mut() {
            stream.capture = stream.capture.filter(|&of| of != graph);
        }
        for event in model.events.values_mut() {
            event.capture = event.capture.filter(|&of| of != graph);
        }
        // SAFETY: the caller gives a place.
        unsafe { put(out, graph) };
    }

    fn cudaStreamIsCapturing(stream: usize, out: *mut c_int) {
        let capture = model().stream(stream)?.capture;
        // SAFETY: the caller gives a place.
        unsafe { put(out, c_int::from(capture.is_some())) };
    }

    fn cudaStreamGetCaptureInfo(
        stream: usize,
        status: *mut c_int,
        number: *mut c_ulonglong,
        graph: *mut usize,
        dependencies: *mut usize,
        edges: *mut usize,
        count: *mut usize,
    ) {
        let capture = model().stream(stream)?.capture;
        // SAFETY: the caller gives places, or null.
        unsafe {
            put(status, c_int::from(capture.is_some()));
            put(dependencies, 0);
            put(edges, 0);
            put(count, 0);
            if let Some(capture) = capture {
                put(number, capture as c_ulonglong);
                put(graph, capture);
            }
        }
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        thread_local! {
            static MODE: Cell<c_int> = const { Cell::new(0) };
        }
        // SAFETY: the caller gives the mode, and takes the one before.
        unsafe { mode.write(MODE.replace(mode.read())) };
    }

    fn cudaGraphInstantiate(out: *mut usize, graph: usize, _flags: c_ulonglong) {
        let executable = instantiate(graph)?;
        // SAFETY: the caller gives a place.
        unsafe { put(out, executable) };
    }

    fn cudaGraphInstantiateWithFlags(out: *mut usize, graph: usize, _flags: c_ulonglong) {
        let executable = instantiate(graph)?;
        // SAFETY: the caller gives a place.
        unsafe { put(out, executable) };
    }

    fn cudaGraphLaunch(executable: usize, stream: usize) {
        let work = model().graphs.get(&executable).ok_or(INVALID)?.work();
        issue("cudaGraphLaunch", stream, work)?;
    }

    fn cudaGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let model = model();
        let length = model.graphs.get(&graph).ok_or(INVALID)?.nodes.len();
        // SAFETY: the caller gives a count, and as many places or null.
        unsafe {
            if !nodes.is_null() {
                for at in 0..length.min(count.read()) {
                    nodes.add(at).write(graph + at + 1);
                }
            }
            put(count, length);
        }
    }

    fn cudaGraphDestroy(graph: usize) {
        model().graphs.remove(&graph).ok_or(INVALID)?;
    }

    fn cudaGraphExecDestroy(executable: usize) {
        model().graphs.remove(&executable).ok_or(INVALID)?;
    }

    /// What a graph keeps alive lives as long as the process here.
    fn cudaUserObjectCreate(out: *mut usize, _object: *mut c_void, _destroy: usize, _count: c_uint, _flags: c_uint) {
        let handle = model().handle();
        // SAFETY: the caller gives a place.
        unsafe { put(out, handle) };
    }

    fn cudaUserObjectRelease(_object: usize, _count: c_uint) {}
    fn cudaGraphRetainUserObject(_graph: usize, _object: usize, _count: c_uint, _flags: c_uint) {}
}
