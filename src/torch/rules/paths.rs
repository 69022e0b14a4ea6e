//! Paths and names of functions in the forms that rules use.

/// `wrapper` of `Optimizer.profile_hook_step.<locals>.wrapper`.
pub fn last_part(qualified: &str) -> &str {
    qualified.rsplit('.').next().unwrap_or(qualified)
}

/// A path from the start of each folder's or file's name on.
pub(super) fn tails(path: &str) -> impl Iterator<Item = &str> {
    let folders = path
        .match_indices('/')
        .filter_map(move |(at, _)| path.get(at + 1..));
    std::iter::once(path).chain(folders)
}

/// The path of an installed package's file below the packages' folder.
pub(super) fn package_path(path: &str) -> Option<&str> {
    ["site-packages/", "dist-packages/"]
        .iter()
        .find_map(|packages| path.rsplit_once(packages))
        .map(|(_, inside)| inside)
}

/// Whether a Python file belongs to Python's own library.
pub fn is_library(file: &str) -> bool {
    library_path(file).is_some()
}

/// The part of a path below the folder of Python's own library: `multiprocessing/queues.py`. `None`
/// for other files.
fn library_path(file: &str) -> Option<&str> {
    if file.contains("-packages/") {
        return None;
    }
    let (_, inside) = file
        .rsplit_once("/lib/python3")
        .or_else(|| file.rsplit_once("/lib64/python3"))?;
    // `.11/threading.py`: the folder's name continues up to the next slash.
    inside.split_once('/').map(|(_, path)| path)
}

/// The public name of a function of Python's own library: `queue.Queue.get`. `None` for functions
/// of other files.
pub fn library_call(file: &str, function: &str) -> Option<String> {
    let path = library_path(file)?;
    let module = path
        .strip_suffix("/__init__.py")
        .or_else(|| path.strip_suffix(".py"))
        .unwrap_or(path)
        .replace('/', ".");
    Some(format!("{module}.{function}"))
}

/// Whether inductor named a file, wherever its cache is (`TORCHINDUCTOR_CACHE_DIR`): after a hash
/// of its content, 51 letters and digits after a `c`. Source: torch 2.15.0,
/// torch/_inductor/codecache.py, `get_path` and `sha256_hash`.
pub(super) fn is_of_inductor(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    let is_hash = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    stem.len() == 52 && stem.starts_with('c') && stem.bytes().all(is_hash)
}

/// Whether a path is that of Python code which inductor wrote: its folder has two letters of the
/// file's name.
pub(super) fn is_inductor_code(file: &str) -> bool {
    let mut parts = file.rsplit('/');
    let (Some(name), Some(folder)) = (parts.next(), parts.next()) else {
        return false;
    };
    name.ends_with(".py") && is_of_inductor(name) && name.get(1..3) == Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_library_are_named_as_users_know_them() {
        let call = |path: &str, function| library_call(path, function);
        assert_eq!(
            call("/usr/lib/python3.11/queue.py", "Queue.get").as_deref(),
            Some("queue.Queue.get")
        );
        assert_eq!(
            call("/x/lib/python3.12/asyncio/__init__.py", "f").as_deref(),
            Some("asyncio.f")
        );
        assert_eq!(call("/x/lib/python3.12/site-packages/a/b.py", "f"), None);
        assert_eq!(call("/home/u/queue.py", "f"), None);
    }
}
