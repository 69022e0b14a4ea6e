//! The part of the schema that is about torch.compile.

use crate::analysis::Analysis;
use crate::analysis::compile::CompileTable;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of this part. Keys are only ever added within a version.
pub const VERSION: u32 = 1;

/// Maximum number of listed functions and graph breaks.
const MOST: usize = 500;

/// torch.compile on the training thread.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Compile {
    /// [`VERSION`].
    pub version: u32,
    #[serde(flatten)]
    pub table: CompileTable,
    /// Number of functions and graph breaks that are not listed.
    pub left_out: usize,
}

/// torch.compile in a process; `None` if it was not seen.
pub(super) fn compile(analysis: &Analysis) -> Option<Compile> {
    let mut table = analysis.primary()?.compile.clone();
    if table.is_empty() {
        return None;
    }
    let all = table.functions.len() + table.graph_breaks.len();
    table.functions.truncate(MOST);
    table.graph_breaks.truncate(MOST);
    Some(Compile {
        version: VERSION,
        left_out: all - table.functions.len() - table.graph_breaks.len(),
        table,
    })
}
