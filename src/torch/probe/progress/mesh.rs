//! Device meshes of a trainer: which ranks it computes with along each dimension.
//!
//! A mesh never changes once it is made, and lives as long as the training. So each one is read
//! once, and again only after a long time: another one may have its address by then.

use super::ProgressProbe;
use super::attributes::Reader;
use super::tensor::Tensor;
use super::watch::IntReader;
use crate::memory::{Memory, read_each};
use crate::model::parallel::{Dimension, MOST_DIMENSIONS, MOST_MEMBERS, text_of};
use crate::model::progress::facts;
use crate::python::dicts::read_type;
use crate::torch::rules::groups::{
    DISTRIBUTED_TENSOR, LAYOUT_AXES, LAYOUT_SHAPE, MESH, MESH_COORDINATES, MESH_LAYOUT, MESH_NAMES,
    MESH_RANKS, MESH_ROOT, MESH_TENSOR, SPEC, SPEC_MESH, UNNAMED_DIMENSION,
};
use rustc_hash::FxHashMap;

/// Time until a mesh is read again, ns.
const AGAIN_NS: u64 = 60_000_000_000;
/// The same of one that could not be read, ns.
const UNFINISHED_NS: u64 = 2_000_000_000;
/// Objects of a process that are read.
const MOST_OBJECTS: usize = 64;
/// Maximum size of a tensor's object, bytes.
const MOST_SLOTS: u64 = 512;

/// The meshes of one process.
#[derive(Debug, Default)]
pub(super) struct Meshes {
    /// When an object may be read again.
    due: FxHashMap<u64, u64>,
}

impl Meshes {
    /// Whether the object at this address may be read now. It counts as read.
    fn is_due(&mut self, object: u64, now_ns: u64) -> bool {
        let is_due = match self.due.get(&object) {
            Some(&due_ns) => now_ns >= due_ns,
            None => self.due.len() < MOST_OBJECTS,
        };
        if is_due {
            self.due.insert(object, now_ns.saturating_add(AGAIN_NS));
        }
        is_due
    }

    /// The object could not be read: it is being made, or it is no mesh of this rank.
    fn is_unfinished(&mut self, object: u64, now_ns: u64) {
        self.due
            .insert(object, now_ns.saturating_add(UNFINISHED_NS));
    }
}

impl ProgressProbe {
    /// This rank's groups in a mesh, unless it was read already.
    pub(super) fn mesh(
        &mut self,
        object: u64,
        now_ns: u64,
        live: &dyn Memory,
    ) -> Option<(&'static str, String)> {
        if !self.meshes.is_due(object, now_ns) {
            return None;
        }
        let found = self.mesh_reader(live).mesh(object);
        if found.is_none() {
            self.meshes.is_unfinished(object, now_ns);
        }
        Some((facts::DEVICE_MESH, found?))
    }

    /// The mesh of an optimizer's first parameter, unless it was read already.
    pub(super) fn mesh_of_optimizer(
        &mut self,
        optimizer: u64,
        now_ns: u64,
        live: &dyn Memory,
    ) -> Option<u64> {
        if !self.meshes.is_due(optimizer, now_ns) {
            return None;
        }
        let parameters = self.parameters(optimizer, live);
        let first = parameters.and_then(|(_, list, _)| self.reader.element(list, 0, live).ok());
        let Some(parameter) = first else {
            self.meshes.is_unfinished(optimizer, now_ns);
            return None;
        };
        self.mesh_reader(live).of_parameter(parameter)
    }

    pub(super) fn mesh_reader<'r>(&'r mut self, memory: &'r dyn Memory) -> MeshReader<'r> {
        MeshReader {
            reader: &mut self.reader,
            ints: &mut self.ints,
            memory,
        }
    }
}

/// Reads objects of a trainer.
pub(super) struct MeshReader<'r> {
    reader: &'r mut Reader,
    ints: &'r mut IntReader,
    memory: &'r dyn Memory,
}

impl MeshReader<'_> {
    /// The mesh that a distributed tensor is on; `None` if it is another tensor.
    fn of_parameter(&mut self, parameter: u64) -> Option<u64> {
        let (reader, memory) = (&mut *self.reader, self.memory);
        let of_type = read_type(&reader.objects(), parameter, memory).ok()?;
        let facts = reader.type_at(of_type, memory).ok()?;
        if facts.name != DISTRIBUTED_TENSOR {
            return None;
        }
        let size = facts.basic_size().min(MOST_SLOTS);
        let slots = memory.read_bytes(parameter, size as usize).ok()?;
        let head = 2 + reader.objects().growth as usize / 8;
        let words = slots.chunks_exact(8).skip(head);
        let words = words.filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        for word in words {
            if reader
                .class_of(word, memory)
                .is_ok_and(|class| class == SPEC)
            {
                return Some(reader.attribute(word, SPEC_MESH, memory).ok()?.value);
            }
        }
        None
    }

    /// This rank's groups in the mesh at `object`, or in the one that it was sliced from, as text.
    /// `None` if it is none, or the rank is not in it.
    fn mesh(&mut self, object: u64) -> Option<String> {
        let root = self.attribute(object, &[MESH_ROOT]);
        let root = root.filter(|&root| self.is_mesh(root)).unwrap_or(object);
        let dimensions = self.dimensions(root)?;
        // Its memory may have been used for another object in between.
        self.is_mesh(root).then(|| text_of(&dimensions))
    }

    fn is_mesh(&mut self, object: u64) -> bool {
        let class = self.reader.class_of(object, self.memory);
        class.is_ok_and(|class| class == MESH)
    }

    fn dimensions(&mut self, mesh: u64) -> Option<Vec<Dimension>> {
        let sizes = self.sizes(mesh)?;
        let coordinates = self.attribute(mesh, &[MESH_COORDINATES])?;
        let coordinates = self.ints(coordinates, sizes.len())?;
        let ranks = self.attribute(mesh, MESH_RANKS)?;
        let (length, first) = self.reader.sequence(ranks, self.memory).ok()?;
        let product = sizes
            .iter()
            .try_fold(1, |all: u64, &size| all.checked_mul(size));
        let is_inside = coordinates.iter().zip(&sizes).all(|(at, size)| at < size);
        if sizes.len() > MOST_DIMENSIONS || product != Some(length) || !is_inside {
            return None;
        }
        let names = self.names(mesh, sizes.len())?;
        let strides = |at: usize| sizes.iter().skip(at + 1).product::<u64>();
        let own: u64 = (0..)
            .zip(&coordinates)
            .map(|(at, each)| each * strides(at))
            .sum();
        let mut found = Vec::with_capacity(sizes.len());
        for (at, ((&size, coordinate), name)) in
            sizes.iter().zip(coordinates).zip(names).enumerate()
        {
            let stride = strides(at);
            let start = own.checked_sub(coordinate * stride)?;
            let members = (0..size).map(|each| first + (start + each * stride) * 8);
            found.push(Dimension::new(&name, &self.ranks(members.collect())?)?);
        }
        Some(found)
    }

    /// The ranks in a list or a tuple.
    pub(super) fn ranks_of(&mut self, sequence: u64) -> Option<Vec<u32>> {
        let (length, first) = self.reader.sequence(sequence, self.memory).ok()?;
        let length = length.min(MOST_MEMBERS as u64 + 1);
        self.ranks((0..length).map(|at| first + at * 8).collect())
    }

    /// The ranks behind these pointers.
    fn ranks(&mut self, pointers: Vec<u64>) -> Option<Vec<u32>> {
        if pointers.len() > MOST_MEMBERS {
            return None;
        }
        let words = read_each(&pointers, self.memory).ok()?;
        let objects: Vec<u64> = words.into_iter().map(u64::from_le_bytes).collect();
        self.learn(*objects.first()?);
        let ranks = self.ints.values(&objects, self.memory)?;
        ranks
            .into_iter()
            .map(|rank| u32::try_from(rank).ok())
            .collect()
    }

    /// Numbers of elements along the dimensions.
    fn sizes(&mut self, mesh: u64) -> Option<Vec<u64>> {
        if let Some(tensor) = self.attribute(mesh, &[MESH_TENSOR]) {
            let growth = self.reader.objects().growth;
            return Tensor::at(tensor, growth, self.memory)?.shape(self.memory);
        }
        let layout = self.attribute(mesh, &[MESH_LAYOUT])?;
        if let Some(axes) = self.attribute(layout, &[LAYOUT_AXES]) {
            let (count, _) = self.reader.sequence(axes, self.memory).ok()?;
            let axes = (0..count.min(MOST_DIMENSIONS as u64 + 1)).map(|at| {
                let axis = self.reader.element(axes, at, self.memory).ok()?;
                let shape = self.attribute(axis, &[LAYOUT_SHAPE])?;
                self.product(shape)
            });
            return axes.collect();
        }
        let shape = self.attribute(layout, &[LAYOUT_SHAPE])?;
        let Ok((count, _)) = self.reader.sequence(shape, self.memory) else {
            return Some(vec![self.int(shape)?]);
        };
        let sizes = (0..count.min(MOST_DIMENSIONS as u64 + 1)).map(|at| {
            let size = self.reader.element(shape, at, self.memory).ok()?;
            self.product(size)
        });
        sizes.collect()
    }

    /// An int, or the product of those in a tuple.
    fn product(&mut self, object: u64) -> Option<u64> {
        match self.reader.sequence(object, self.memory) {
            Ok((count, _)) if count <= MOST_DIMENSIONS as u64 => {
                let factors = self.ints(object, count as usize)?;
                factors
                    .iter()
                    .try_fold(1, |all: u64, &each| all.checked_mul(each))
            }
            Ok(_) => None,
            Err(_) => self.int(object),
        }
    }

    fn names(&mut self, mesh: u64, count: usize) -> Option<Vec<String>> {
        let names = self.attribute(mesh, MESH_NAMES)?;
        let Ok((length, _)) = self.reader.sequence(names, self.memory) else {
            return Some(
                (0..count)
                    .map(|at| format!("{UNNAMED_DIMENSION}{at}"))
                    .collect(),
            );
        };
        if length != count as u64 {
            return None;
        }
        let names = (0..length).map(|at| {
            let name = self.reader.element(names, at, self.memory).ok()?;
            self.reader.text(name, self.memory).ok()
        });
        names.collect()
    }

    /// The first of these attributes that the object has.
    fn attribute(&mut self, object: u64, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| {
            let found = self.reader.attribute(object, name, self.memory);
            found.ok().map(|found| found.value)
        })
    }

    /// The numbers in a list or tuple of `count`.
    fn ints(&mut self, sequence: u64, count: usize) -> Option<Vec<u64>> {
        let (length, _) = self.reader.sequence(sequence, self.memory).ok()?;
        if length != count as u64 {
            return None;
        }
        let each = (0..length).map(|at| {
            let object = self.reader.element(sequence, at, self.memory).ok()?;
            self.int(object)
        });
        each.collect()
    }

    fn int(&mut self, object: u64) -> Option<u64> {
        self.learn(object);
        self.ints.value(object, self.memory)
    }

    fn learn(&mut self, object: u64) {
        let (reader, memory) = (&mut *self.reader, self.memory);
        self.ints.learn(object, memory, |address| {
            reader
                .type_at(address, memory)
                .is_ok_and(|facts| facts.name == "int")
        });
    }
}
