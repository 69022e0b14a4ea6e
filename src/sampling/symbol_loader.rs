//! Symbols off the sampling path: a thread loads a module's table when the first frame in it is seen.

use crate::model::ids::ModuleId;
use crate::native::modules::Module;
use crate::native::symbols::SymbolTable;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tables of modules, as far as they are loaded.
#[derive(Debug)]
pub(super) struct SymbolLoader {
    requests: Sender<(ModuleId, Arc<Module>)>,
    loaded: Receiver<(ModuleId, SymbolTable)>,
    tables: FxHashMap<ModuleId, Option<Arc<SymbolTable>>>,
    outstanding: usize,
}

impl SymbolLoader {
    pub(super) fn start() -> Self {
        let (requests, incoming) = unbounded::<(ModuleId, Arc<Module>)>();
        let (outgoing, loaded) = unbounded();
        // Without the thread every lookup says "not yet": names are missing, samples are not.
        let _ = std::thread::Builder::new().name("torchspy-syms".to_owned()).spawn(move || {
            for (id, module) in incoming {
                let table = SymbolTable::load(&module);
                if outgoing.send((id, table)).is_err() {
                    return;
                }
            }
        });
        Self {
            requests,
            loaded,
            tables: FxHashMap::default(),
            outstanding: 0,
        }
    }

    /// Asks for the symbols of a module, once.
    pub(super) fn request(&mut self, id: ModuleId, module: &Arc<Module>) {
        if self.tables.contains_key(&id) {
            return;
        }
        self.tables.insert(id, None);
        if self.requests.send((id, module.clone())).is_ok() {
            self.outstanding += 1;
        }
    }

    /// Takes over what has been loaded since. Tells whether anything was.
    pub(super) fn take_loaded(&mut self) -> bool {
        let mut any = false;
        while let Ok((id, table)) = self.loaded.try_recv() {
            self.tables.insert(id, Some(Arc::new(table)));
            self.outstanding -= 1;
            any = true;
        }
        any
    }

    /// Waits for what is being loaded, for `patience` at most.
    pub(super) fn wait(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.outstanding > 0 {
            let Ok((id, table)) = self.loaded.recv_deadline(deadline) else { return };
            self.tables.insert(id, Some(Arc::new(table)));
            self.outstanding -= 1;
        }
    }

    /// Whether the module's symbols are there.
    pub(super) fn is_loaded(&self, id: ModuleId) -> bool {
        matches!(self.tables.get(&id), Some(Some(_)))
    }

    /// The symbol around an address of a module's file: start, end and mangled name.
    pub(super) fn lookup(&self, id: ModuleId, address: u64) -> Option<(u64, u64, String)> {
        let symbol = self.tables.get(&id)?.as_ref()?.lookup(address)?;
        Some((symbol.start, symbol.end, symbol.name))
    }
}
