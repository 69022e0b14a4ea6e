//! Loads symbols off the sampling path: a thread reads a module's symbol table when the first frame
//! in the module is seen. The table gives function names, and function bounds to the unwinder where
//! there is no unwind information.

use crate::model::ids::ModuleId;
use crate::native::modules::Module;
use crate::os::allocator::give_back_free_memory;
use crate::os::priority::run_behind;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Functions after whose tables free memory is given back: making a table takes several times its
/// size. libtorch_cpu has 350,000.
const MANY: usize = 50_000;

/// The loader thread and the modules whose symbols were requested.
#[derive(Debug)]
pub(super) struct SymbolLoader {
    requests: Sender<Arc<Module>>,
    loaded: Receiver<()>,
    modules: FxHashMap<ModuleId, Arc<Module>>,
    outstanding: usize,
}

impl SymbolLoader {
    /// `behind`: the thread runs at low priority, because names may arrive later than samples.
    pub(super) fn start(behind: bool) -> Self {
        let (requests, incoming) = unbounded::<Arc<Module>>();
        let (outgoing, loaded) = unbounded();
        // Without the thread every lookup reports "not loaded": names are missing, samples are not.
        let _ = std::thread::Builder::new()
            .name("torchspy-syms".to_owned())
            .spawn(move || {
                // Reading the table of a large library takes a tenth of a second.
                if behind {
                    run_behind(15);
                }
                let mut functions = 0;
                while let Ok(module) = incoming.recv() {
                    functions += module.symbols().len();
                    if outgoing.send(()).is_err() {
                        return;
                    }
                    if functions >= MANY && incoming.is_empty() {
                        functions = 0;
                        give_back_free_memory();
                    }
                }
            });
        Self {
            requests,
            loaded,
            modules: FxHashMap::default(),
            outstanding: 0,
        }
    }

    /// Requests the symbols of a module, once.
    pub(super) fn request(&mut self, id: ModuleId, module: &Arc<Module>) {
        if self.modules.contains_key(&id) {
            return;
        }
        self.modules.insert(id, module.clone());
        if self.requests.send(module.clone()).is_ok() {
            self.outstanding += 1;
        }
    }

    /// Waits for outstanding requests, for at most `patience`.
    pub(super) fn wait(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.outstanding > 0 && self.loaded.recv_deadline(deadline).is_ok() {
            self.outstanding -= 1;
        }
    }

    /// Whether the symbols were requested and are not loaded yet.
    pub(super) fn is_awaited(&self, id: ModuleId) -> bool {
        self.modules
            .get(&id)
            .is_some_and(|module| module.symbols_if_loaded().is_none())
    }

    /// The symbol that contains an address of a module's file: start, end and mangled name.
    pub(super) fn lookup(&self, id: ModuleId, address: u64) -> Option<(u64, u64, String)> {
        let symbol = self
            .modules
            .get(&id)?
            .symbols_if_loaded()?
            .lookup(address)?;
        Some((symbol.start, symbol.end, symbol.name))
    }
}
