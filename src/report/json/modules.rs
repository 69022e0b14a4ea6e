//! The part of the schema that is about `nn.Module`s.

use crate::analysis::Analysis;
use crate::analysis::modules::ModuleGroup;
use crate::model::seconds::of as seconds;
use crate::report::tables::modules::groups;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Maximum number of listed modules.
pub(super) const MOST: usize = 1000;

/// The training thread's forward passes.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Forward {
    /// [`VERSION`].
    pub version: u32,
    /// Time in forward.
    pub forward_s: f64,
    /// The part of it whose module is not known.
    pub unread_s: f64,
    /// Number of modules that are not listed: those with the least total time.
    pub left_out: usize,
    /// The same with modules grouped that do the same thing at different positions:
    /// `layers.*.attention`.
    pub groups: Vec<ModuleGroup>,
    /// Number of groups that are not listed.
    pub groups_left_out: usize,
}

/// The forward passes of a process; `None` if there were none.
pub(super) fn forward(analysis: &Analysis) -> Option<Forward> {
    let tree = &analysis.primary()?.modules;
    if tree.forward_ns == 0 {
        return None;
    }
    let groups = groups(analysis, MOST);
    Some(Forward {
        version: VERSION,
        forward_s: seconds(tree.forward_ns),
        unread_s: seconds(tree.unknown_ns),
        left_out: tree.modules.len().saturating_sub(MOST),
        groups_left_out: tree.groups.len() - groups.len(),
        groups,
    })
}
