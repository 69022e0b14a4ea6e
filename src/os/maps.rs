//! `/proc/PID/maps`, parsed. Pure: the text is handed in.
//!
//! Format: proc_pid_maps(5), `start-end perms offset major:minor inode path`; the path's newlines
//! are escaped as `\012` and the path of a file that was unlinked ends in ` (deleted)` (Linux,
//! fs/proc/task_mmu.c, `show_map_vma`).

use crate::model::mapping::Mapping;

/// Maximum number of lines that are kept. The kernel's own limit is 65,530 mappings
/// (`vm.max_map_count`) unless it was raised.
const MAX_MAPPINGS: usize = 1 << 20;

/// All mappings of `text`, in its order. Malformed lines are skipped.
pub fn parse_maps(text: &[u8]) -> Vec<Mapping> {
    parse_maps_where(text, |_| true)
}

/// The mappings of `text` that `keep` accepts. It is called before the path is set, so that paths
/// of other mappings are never copied: CUDA processes have tens of thousands of mappings.
pub fn parse_maps_where(text: &[u8], mut keep: impl FnMut(&Mapping) -> bool) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let Some((mut mapping, path)) = parse_line(line) else {
            continue;
        };
        if !keep(&mapping) {
            continue;
        }
        if !path.is_empty() {
            (mapping.path, mapping.deleted) = parse_path(path);
        }
        mappings.push(mapping);
        if mappings.len() == MAX_MAPPINGS {
            break;
        }
    }
    mappings
}

/// A line's fields, with its path still as bytes.
fn parse_line(line: &[u8]) -> Option<(Mapping, &[u8])> {
    let mut rest = line;
    let range = next_field(&mut rest)?;
    let permissions = next_field(&mut rest)?;
    let offset = next_field(&mut rest)?;
    let device = next_field(&mut rest)?;
    let inode = next_field(&mut rest)?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let mapping = Mapping {
        start: parse_hex(range.get(..dash)?)?,
        end: parse_hex(range.get(dash + 1..)?)?,
        offset: parse_hex(offset)?,
        inode: parse_decimal(inode)?,
        device: (
            u32::try_from(parse_hex(device.get(..colon)?)?).ok()?,
            u32::try_from(parse_hex(device.get(colon + 1..)?)?).ok()?,
        ),
        readable: permissions.first() == Some(&b'r'),
        writable: permissions.get(1) == Some(&b'w'),
        executable: permissions.get(2) == Some(&b'x'),
        shared: permissions.get(3) == Some(&b's'),
        path: String::new(),
        deleted: false,
    };
    (mapping.start < mapping.end).then_some((mapping, rest))
}

/// Cuts the next field off `rest`, and the spaces around it.
fn next_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = rest
        .iter()
        .position(|&byte| byte == b' ')
        .unwrap_or(rest.len());
    let (field, mut after) = rest.split_at(length);
    while let [b' ', tail @ ..] = after {
        after = tail;
    }
    *rest = after;
    (!field.is_empty()).then_some(field)
}

fn parse_path(path: &[u8]) -> (String, bool) {
    const DELETED: &[u8] = b" (deleted)";
    let (path, deleted) = match path.strip_suffix(DELETED) {
        Some(path) => (path, true),
        None => (path, false),
    };
    let mut path = String::from_utf8_lossy(path).into_owned();
    if path.contains("\\012") {
        path = path.replace("\\012", "\n");
    }
    (path, deleted)
}

fn parse_hex(digits: &[u8]) -> Option<u64> {
    parse_digits(digits, 16)
}

fn parse_decimal(digits: &[u8]) -> Option<u64> {
    parse_digits(digits, 10)
}

fn parse_digits(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for &digit in digits {
        let digit = char::from(digit).to_digit(radix)?;
        value = value
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:01 1234                       /usr/bin/with space
7f1200000000-7f1200021000 rw-p 00000000 00:00 0 
7f1200100000-7f1200200000 r-xs 00002000 00:05 77                         /dev/nvidia0
7f1200200000-7f1200300000 r-xp 001ff000 103:02 99                        /tmp/lib.so (deleted)
7f1200300000-7f1200301000 r-xp 00000000 00:01 5                          /memfd:jit (deleted)
7ffe00000000-7ffe00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn fields_are_read_as_the_kernel_writes_them() {
        let mappings = parse_maps(TEXT.as_bytes());
        assert_eq!(mappings.len(), 7);
        assert_eq!(mappings[0].path, "/usr/bin/with space");
        assert_eq!(mappings[0].device, (0xfe, 1));
        assert_eq!(mappings[0].inode, 1234);
        assert!(
            mappings[0].readable
                && !mappings[0].executable
                && !mappings[0].shared
                && mappings[0].is_file()
        );
        assert_eq!(mappings[1].path, "");
        assert!(mappings[1].writable && !mappings[1].is_file());
        assert!(mappings[2].is_device() && mappings[2].shared && !mappings[2].is_file());
        assert_eq!(mappings[3].offset, 0x1f_f000);
        assert_eq!(
            (mappings[3].path.as_str(), mappings[3].deleted),
            ("/tmp/lib.so", true)
        );
        assert!(!mappings[4].is_file());
        assert_eq!(mappings[5].path, "[vdso]");
        assert!(!mappings[6].readable && mappings[6].executable);
    }

    #[test]
    fn a_filter_is_asked_before_the_path_is_copied() {
        let kept = parse_maps_where(TEXT.as_bytes(), |mapping| {
            assert!(mapping.path.is_empty());
            mapping.executable
        });
        assert_eq!(kept.len(), 5);
        assert_eq!(kept[0].path, "/dev/nvidia0");
    }

    #[test]
    fn own_maps_are_read_whole() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let mappings = parse_maps(&text);
        assert_eq!(
            mappings.len(),
            text.iter().filter(|&&byte| byte == b'\n').count()
        );
        let here = own_maps_are_read_whole as *const () as u64;
        assert!(
            mappings
                .iter()
                .any(|mapping| mapping.contains(here) && mapping.executable)
        );
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..500)) {
            parse_maps(&text);
        }

        #[test]
        fn damaged_lines_never_panic(position in 0..TEXT.len(), byte in any::<u8>(), cut in 0..TEXT.len()) {
            let mut text = TEXT.as_bytes().to_vec();
            text[position] = byte;
            text.truncate(cut);
            for mapping in parse_maps(&text) {
                prop_assert!(mapping.start < mapping.end);
            }
        }
    }
}
