//! `nn.Module`s whose calls were seen.

/// A module in the tree that it was called in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NnModuleInfo {
    /// Class of the outermost module that contains it: `ResNet`.
    pub root: String,
    /// Number among the outermost modules of that class in the process, from 0: two models of one
    /// class are two trees.
    pub number: u32,
    /// Its name there, as in `named_modules()` without wrappers: `layer1.0.conv1`; empty for the
    /// outermost module itself.
    pub path: String,
    /// Its own class: `Conv2d`.
    pub class: String,
    /// Its flag `training`; `None` if it was not read.
    pub training: Option<bool>,
}

impl NnModuleInfo {
    /// Its label in a box or a list: `layer1.0.conv1 (Conv2d)`; the outermost by its class, with
    /// its number from the second on.
    pub fn label(&self) -> String {
        let evaluates = match self.training {
            Some(false) => "eval",
            _ => "",
        };
        let root = match self.number {
            0 => self.class.clone(),
            number => format!("{} #{}", self.class, u64::from(number) + 1),
        };
        match (self.path.is_empty(), evaluates) {
            (true, "") => root,
            (true, mode) => format!("{root} ({mode})"),
            (false, "") => format!("{} ({})", self.path, self.class),
            (false, mode) => format!("{} ({}, {mode})", self.path, self.class),
        }
    }
}
