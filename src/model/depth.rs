//! Maximum depth of stacks: of deeper ones both ends are kept.

/// Maximum number of frames of a stack, besides native frames, of which there may be several per
/// Python frame.
pub const MAX_DEPTH: usize = 4096;
/// Number of frames kept at the root of a deeper stack; the others are at the leaf.
const ROOT_FRAMES: usize = 1024;
/// Frames of any kind per counted frame: a Python 3.10 function takes three or four frames of the
/// interpreter.
const ALL_FRAMES: usize = 4;

/// Shortens a stack, root first, with more than [`MAX_DEPTH`] counted frames: `marker` replaces the
/// frames between its ends. The marker is always at the same distance from the root, so that a
/// recursion gives one stack whatever its depth.
pub fn keep_ends<F>(frames: &mut Vec<F>, marker: F, counts: impl Fn(&F) -> bool) {
    let root = length_of(frames.iter(), ROOT_FRAMES, &counts);
    let leaf = length_of(frames.iter().rev(), MAX_DEPTH - ROOT_FRAMES, &counts);
    if root + leaf < frames.len() {
        frames.splice(root..frames.len() - leaf, [marker]);
    }
}

/// The same for a stack whose root was not reached, as its first frame shows: the frames next to it
/// differ from read to read, and are omitted.
pub fn keep_leaf<F>(frames: &mut Vec<F>, counts: impl Fn(&F) -> bool) {
    let leaf = length_of(frames.iter().rev(), MAX_DEPTH, &counts);
    if leaf + 1 < frames.len() {
        frames.drain(1..frames.len() - leaf);
    }
}

/// Number of first frames with at most so many counted ones.
fn length_of<'f, F: 'f>(
    frames: impl Iterator<Item = &'f F>,
    most: usize,
    counts: &impl Fn(&F) -> bool,
) -> usize {
    let mut counted = 0;
    frames
        .take(most * ALL_FRAMES)
        .take_while(|&frame| {
            counted += usize::from(counts(frame));
            counted <= most
        })
        .count()
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
            keep_ends(&mut frames, "…", |_| true);
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
        keep_leaf(&mut frames, |_| true);
        assert_eq!(
            (frames.len(), frames[0], frames[1], frames.last()),
            (MAX_DEPTH + 1, 0, 1_904, Some(&5_999))
        );
    }

    #[test]
    fn frames_that_do_not_count_are_kept_with_those_that_do() {
        let stack = |depth: usize| {
            let mut frames = vec!["main"];
            frames.extend(["again", "eval", "call"].repeat(depth));
            keep_ends(&mut frames, "…", |frame| {
                !["eval", "call"].contains(frame)
            });
            frames
        };
        assert_eq!(stack(4_000).len(), 12_001);
        let deep = stack(5_000);
        assert_eq!(
            deep.iter().filter(|&&frame| frame == "again").count(),
            MAX_DEPTH - 1
        );
        assert_eq!(deep, stack(9_999));
    }
}
