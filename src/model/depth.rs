//! How deep a stack may be: of deeper ones both ends are kept.

/// The most frames of a stack that are kept.
pub const MAX_DEPTH: usize = 4096;
/// Of a deeper stack, so many at the root; the others at the leaf.
const ROOT_FRAMES: usize = 1024;

/// Shortens a stack, root first, that is deeper than [`MAX_DEPTH`]: `marker` takes the place of what lies between its ends. That
/// place is always as far from the root, so that one recursion gives one stack, however deep it was.
pub fn keep_ends<F>(frames: &mut Vec<F>, marker: F) {
    if frames.len() > MAX_DEPTH {
        let leaf = frames.len() - (MAX_DEPTH - ROOT_FRAMES);
        frames.splice(ROOT_FRAMES..leaf, [marker]);
    }
}

/// The same of a stack whose root was not reached, which its first frame says: what lies next to it differs from read to read, and is
/// left out.
pub fn keep_leaf<F>(frames: &mut Vec<F>) {
    if frames.len() > MAX_DEPTH {
        frames.drain(1..frames.len() - MAX_DEPTH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_recursion_is_one_stack_however_deep() {
        let stack = |depth: usize| {
            let mut frames = vec!["main"];
            frames.extend(vec!["again"; depth]);
            frames.push("leaf");
            keep_ends(&mut frames, "…");
            frames
        };
        assert_eq!(stack(100).len(), 102);
        assert_eq!(stack(4_094).len(), MAX_DEPTH);
        let deep = stack(5_000);
        assert_eq!(deep.len(), MAX_DEPTH + 1);
        assert_eq!(
            (deep[0], deep[1], deep[1024], deep[4096]),
            ("main", "again", "…", "leaf")
        );
        assert_eq!(deep, stack(9_999));
    }

    #[test]
    fn without_a_root_the_leaf_is_kept() {
        let mut frames: Vec<usize> = (0..6_000).collect();
        keep_leaf(&mut frames);
        assert_eq!(
            (frames.len(), frames[0], frames[1], frames.last()),
            (MAX_DEPTH + 1, 0, 1_904, Some(&5_999))
        );
    }
}
