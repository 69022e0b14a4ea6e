//! Tensors of a running process: which bytes of which storage they cover, and their gradients.
//!
//! A tensor is believed if its parts agree: the `TensorImpl` points back to its Python object (a
//! gradient has the virtual table of its parameter), its sizes give its number of elements, the
//! storage has a plausible reference count and the tensor's device, and the tensor lies within the
//! storage. All are read by a few vectored calls, and then once more: what changed in between is
//! read again.

use super::super::progress::tensor::is_pointer;
use crate::memory::{Memory, read_those};
use crate::python::objects::u64_at;
use crate::torch::rules::progress::{TENSOR_LAYOUTS, TENSOR_POINTERS, TensorLayout};
use crate::torch::rules::tensors::{
    GRADIENT, GRADIENT_OLD_STRING, META_DEVICE, StorageLayout, autograd_field, element,
    storage_field, storage_layout,
};

/// Number of times that tensors which change are read.
const PASSES: usize = 4;
/// Number of tensors that are read at a time.
const BATCH: usize = 4096;
/// Bytes of a `TensorImpl` that are read: up to and including its type and device, of the largest
/// layout.
const HEAD: usize = 184;
/// Bytes of a `StorageImpl`, of the larger layout.
const STORAGE: usize = 64;
/// Bytes of an `AutogradMeta`: up to and including `grad_fn_`.
const AUTOGRAD: usize = 56;
/// More references than a tensor or a storage ever has.
const MAX_REFERENCES: u32 = 1 << 24;
/// Sizes from here on are not plausible, bytes or elements.
const MAX_SIZE: u64 = 1 << 48;
/// Maximum number of dimensions that are stored in the tensor itself (see `progress::tensor`).
const INLINE_DIMENSIONS: usize = 5;
const MAX_DIMENSIONS: u64 = 64;

/// Why a tensor was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Unread {
    /// Its fields are not where they are in the known versions of torch, or it was freed.
    NotATensor,
    /// Its fields contradict each other.
    Inconsistent,
    /// It changed at each read.
    Changing,
    UnknownType,
    /// Its elements are elsewhere: a sparse tensor, or one of a class of its own.
    NoStorage,
}

impl Unread {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Unread::NotATensor => "no tensor in a layout that torchspy knows",
            Unread::Inconsistent => "fields that contradict each other",
            Unread::Changing => "changed while it was read",
            Unread::UnknownType => "type or device that torchspy does not know",
            Unread::NoStorage => "sparse, or a class of tensors that torchspy does not know",
        }
    }
}

/// The bytes of a storage that a tensor covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Address of the `StorageImpl`.
    pub(super) storage: u64,
    pub(super) storage_bytes: u64,
    /// From the start of the storage.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) dtype: &'static str,
    /// Kind and index.
    pub(super) device: (u8, i8),
}

/// A tensor that was read. Its gradient: `None` if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorFacts {
    /// Its own bytes, or why they are not known.
    pub(super) own: Result<Extent, Unread>,
    pub(super) gradient: Option<Gradient>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gradient {
    pub(super) extent: Result<Extent, Unread>,
    /// Its Python object; 0 if it has none.
    pub(super) python: u64,
}

/// Reads the tensors whose Python objects are at `objects`. `growth`: bytes by which the head of an
/// object is larger than usual. `with_gradients`: whether gradients are read, too.
pub(super) fn read_tensors(
    objects: &[u64],
    growth: u32,
    with_gradients: bool,
    memory: &dyn Memory,
) -> Vec<TensorFacts> {
    let mut facts = Vec::with_capacity(objects.len());
    for batch in objects.chunks(BATCH) {
        let pass = |objects: &[u64]| pass(objects, growth, with_gradients, memory);
        let mut now = pass(batch);
        let mut open: Vec<usize> = (0..batch.len()).collect();
        for _ in 1..PASSES {
            let again: Vec<u64> = open
                .iter()
                .filter_map(|&at| batch.get(at).copied())
                .collect();
            let mut next = Vec::new();
            for (&at, read) in open.iter().zip(pass(&again)) {
                if let Some(known) = now.get_mut(at)
                    && *known != read
                {
                    *known = read;
                    next.push(at);
                }
            }
            open = next;
            if open.is_empty() {
                break;
            }
        }
        for at in open {
            if let Some(known) = now.get_mut(at) {
                known.own = Err(Unread::Changing);
                known.gradient = None;
            }
        }
        facts.extend(now);
    }
    facts
}

/// Whether one of these tensors has the function that computed it: then it keeps the graph of what
/// led to it, with the tensors that this saved for backward.
pub(super) fn any_keeps_graph(objects: &[u64], growth: u32, memory: &dyn Memory) -> bool {
    let autograd = autograd_of(&heads(objects, growth, memory));
    let fields = read_those::<AUTOGRAD>(&autograd, memory);
    let mut both = autograd.iter().zip(fields);
    both.any(|(&address, fields)| {
        fields.is_ok_and(|fields| autograd_pointer(address, &fields, FUNCTION_FIELD) != 0)
    })
}

/// The head of a `TensorImpl` whose layout is known.
#[derive(Clone, Copy)]
struct Head {
    bytes: [u8; HEAD],
    layout: TensorLayout,
    address: u64,
}

impl Head {
    fn word(&self, offset: u32) -> u64 {
        u64_at(&self.bytes, offset)
    }

    fn byte(&self, offset: u32) -> u8 {
        self.bytes.get(offset as usize).copied().unwrap_or(0)
    }

    fn has_references(&self) -> bool {
        (1..MAX_REFERENCES).contains(&(self.word(8) as u32))
    }

    fn elements(&self) -> u64 {
        self.word(self.layout.python + 104)
    }

    /// Number of elements from the first to the last, which strides may spread.
    fn span(&self) -> Result<u64, Unread> {
        let sizes = self.layout.python + 8;
        let dimensions = self.word(sizes);
        let elements = self.elements();
        if dimensions > MAX_DIMENSIONS || elements >= MAX_SIZE {
            return Err(Unread::Inconsistent);
        }
        let dimensions = dimensions as usize;
        if dimensions > INLINE_DIMENSIONS {
            return Ok(elements);
        }
        let (mut product, mut span) = (1_u64, 1_u64);
        for at in 0..dimensions as u32 {
            let size = self.word(sizes + 8 + at * 8);
            let stride = self.word(sizes + 8 + (INLINE_DIMENSIONS as u32 + at) * 8);
            product = product.checked_mul(size).ok_or(Unread::Inconsistent)?;
            let steps = size.saturating_sub(1).checked_mul(stride);
            span = steps
                .and_then(|steps| span.checked_add(steps))
                .ok_or(Unread::Inconsistent)?;
        }
        match product == elements && span < MAX_SIZE {
            true => Ok(if elements == 0 { 0 } else { span }),
            false => Err(Unread::Inconsistent),
        }
    }

    /// The bytes that it covers; its storage was read.
    fn extent(&self, storage: Option<&[u8; STORAGE]>) -> Result<Extent, Unread> {
        let span = self.span()?;
        let at = self.layout.data_type;
        let number = u16::from_le_bytes([self.byte(at), self.byte(at + 1)]);
        let (dtype, element_bytes) = element(number).ok_or(Unread::UnknownType)?;
        let device = (self.byte(at + 2), self.byte(at + 3) as i8);
        if self.byte(at + 4) != 1 {
            return Err(Unread::Inconsistent);
        }
        let storage = storage.ok_or(match self.word(storage_field(&self.layout)) {
            0 => Unread::NoStorage,
            _ => Unread::Inconsistent,
        })?;
        let fields: StorageLayout = storage_layout(&self.layout);
        let word = |offset: u32| u64_at(storage, offset);
        let of_device = word(fields.device).to_le_bytes();
        let size = word(fields.size);
        let references = word(8) as u32;
        let offset = self.word(self.layout.python + 96);
        if !is_pointer(word(0))
            || !(1..MAX_REFERENCES).contains(&references)
            || (of_device[0], of_device[1] as i8) != device
            || size >= MAX_SIZE
            || offset >= MAX_SIZE
        {
            return Err(Unread::Inconsistent);
        }
        let (mut start, mut end) = (offset * element_bytes, (offset + span) * element_bytes);
        if device.0 == META_DEVICE || size == 0 {
            // It has no memory: of a sharded parameter the storage is freed between its uses.
            (start, end) = (0, 0);
        } else if word(fields.data) == 0 {
            return Err(Unread::NoStorage);
        }
        if end > size {
            return Err(Unread::Inconsistent);
        }
        Ok(Extent {
            storage: self.word(storage_field(&self.layout)),
            storage_bytes: if end == 0 { 0 } else { size },
            start,
            end,
            dtype,
            device,
        })
    }
}

fn pass(
    objects: &[u64],
    growth: u32,
    with_gradients: bool,
    memory: &dyn Memory,
) -> Vec<TensorFacts> {
    let heads = heads(objects, growth, memory);
    let extents = extents(&heads, memory);
    let gradients = match with_gradients {
        true => gradients(&heads, memory),
        false => vec![None; heads.len()],
    };
    let both = extents.into_iter().zip(gradients);
    both.map(|(own, gradient)| TensorFacts { own, gradient })
        .collect()
}

/// The heads of the tensors of Python objects.
fn heads(objects: &[u64], growth: u32, memory: &dyn Memory) -> Vec<Option<Head>> {
    let mut found: Vec<Option<Head>> = vec![None; objects.len()];
    for pointer in TENSOR_POINTERS {
        let open: Vec<usize> = (0..objects.len())
            .filter(|&at| found.get(at).is_some_and(Option::is_none))
            .collect();
        let places = open.iter().filter_map(|&at| objects.get(at));
        let places: Vec<u64> = places
            .map(|object| object.wrapping_add(u64::from(pointer + growth)))
            .collect();
        let words = words(&places, memory);
        let bytes = read_those::<HEAD>(&words, memory);
        for ((&at, address), bytes) in open.iter().zip(words).zip(bytes) {
            if let (Some(slot), Some(&object), Ok(bytes)) =
                (found.get_mut(at), objects.get(at), bytes)
            {
                *slot = proven(bytes, address, object);
            }
        }
    }
    found
}

/// The words at these places; 0 where it is no pointer.
fn words(places: &[u64], memory: &dyn Memory) -> Vec<u64> {
    let words = read_those::<8>(places, memory).into_iter();
    words
        .map(|word| word.map_or(0, u64::from_le_bytes))
        .map(|word| if is_pointer(word) { word } else { 0 })
        .collect()
}

/// The head of a tensor that points back to its Python object. Up to 2.10 the lowest bit of that
/// pointer shows which of the two owns the other.
fn proven(bytes: [u8; HEAD], address: u64, object: u64) -> Option<Head> {
    let heads = TENSOR_LAYOUTS.into_iter().map(|layout| Head {
        bytes,
        layout,
        address,
    });
    let mut heads = heads.filter(|head| {
        head.word(head.layout.python) & !1 == object
            && is_pointer(head.word(0))
            && head.has_references()
    });
    heads.next()
}

fn extents(heads: &[Option<Head>], memory: &dyn Memory) -> Vec<Result<Extent, Unread>> {
    let places: Vec<u64> = heads
        .iter()
        .map(|head| head.map_or(0, |head| head.word(storage_field(&head.layout))))
        .collect();
    let storages = read_those::<STORAGE>(&places, memory);
    let both = heads.iter().zip(storages);
    both.map(|(head, storage)| {
        let head = head.as_ref().ok_or(Unread::NotATensor)?;
        head.extent(storage.ok().as_ref())
    })
    .collect()
}

/// The addresses of the `AutogradMeta`s of tensors; 0 where there is none.
fn autograd_of(heads: &[Option<Head>]) -> Vec<u64> {
    let field =
        |head: &Option<Head>| head.map_or(0, |head| head.word(autograd_field(&head.layout)));
    heads.iter().map(field).collect()
}

/// The gradients of tensors.
fn gradients(heads: &[Option<Head>], memory: &dyn Memory) -> Vec<Option<Gradient>> {
    let autograd = autograd_of(heads);
    let fields = read_those::<AUTOGRAD>(&autograd, memory);
    let pointers: Vec<u64> = autograd
        .iter()
        .zip(fields)
        .map(|(&address, fields)| {
            fields.map_or(0, |fields| {
                autograd_pointer(address, &fields, GRADIENT_FIELD)
            })
        })
        .collect();
    let bytes = read_those::<HEAD>(&pointers, memory);
    let mut unread = Vec::with_capacity(heads.len());
    let mut found = Vec::with_capacity(heads.len());
    for (((head, &address), bytes), &meta) in heads.iter().zip(&pointers).zip(bytes).zip(&autograd)
    {
        let head = head.filter(|_| meta != 0);
        let gradient = head.zip(bytes.ok()).map(|(head, bytes)| Head {
            bytes,
            layout: head.layout,
            address,
        });
        let state = match (head, gradient) {
            (None, _) => State::None,
            (Some(_), None) => State::Unread,
            (Some(head), Some(gradient)) => state_of(&head, &gradient),
        };
        found.push(gradient.filter(|_| state == State::Tensor));
        unread.push((state, gradient));
    }
    let extents = extents(&found, memory);
    let each = unread.into_iter().zip(extents);
    each.map(|((state, gradient), extent)| {
        let python = gradient.map_or(0, |gradient| gradient.word(gradient.layout.python) & !1);
        let extent = match state {
            State::None => return None,
            State::Tensor => extent,
            State::Other => Err(Unread::NoStorage),
            State::Unread => Err(Unread::Inconsistent),
        };
        Some(Gradient { extent, python })
    })
    .collect()
}

/// What the `grad_` of a tensor is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    None,
    Tensor,
    /// A tensor of another kind than its parameter: a sparse one.
    Other,
    Unread,
}

fn state_of(head: &Head, gradient: &Head) -> State {
    if gradient.address == head.address || !is_pointer(gradient.word(0)) {
        return State::Unread;
    }
    if gradient.word(0) == head.word(0) {
        return match gradient.has_references() && gradient.elements() == head.elements() {
            true => State::Tensor,
            false => State::Unread,
        };
    }
    // The undefined tensor has a virtual table of its own, and nothing else.
    match (
        gradient.word(storage_field(&gradient.layout)),
        gradient.elements(),
    ) {
        (0, 0) => State::None,
        _ => State::Other,
    }
}

/// `grad_` of an `AutogradMeta`, and the first word of `grad_fn_`, which follows it, in bytes from
/// the former.
const GRADIENT_FIELD: u32 = 0;
const FUNCTION_FIELD: u32 = 8;

/// The pointer at a field of the `AutogradMeta` at `address`; 0 if it is none.
fn autograd_pointer(address: u64, fields: &[u8; AUTOGRAD], field: u32) -> u64 {
    // A short name is stored within its string, which begins with a pointer to it.
    let is_new = u64_at(fields, 8) == address.wrapping_add(24);
    let gradient = if is_new {
        GRADIENT
    } else {
        GRADIENT_OLD_STRING
    };
    let word = u64_at(fields, gradient + field);
    if is_pointer(word) { word } else { 0 }
}

#[cfg(test)]
#[path = "tensors_tests.rs"]
mod tests;
