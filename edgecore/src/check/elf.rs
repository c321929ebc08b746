//! How long a program's file must be: a copy that was cut short may run for weeks, and then not.

/// What is read of a file's beginning to know.
pub(super) const HEADER_BYTES: usize = 64;

/// Where the file's own tables end, from its first bytes; `None` for what is no little-endian ELF file. The table of
/// sections is written last, so a file that was cut short ends before.
pub(super) fn length(header: &[u8]) -> Option<u64> {
    let is_64 = match header.get(..6)? {
        [0x7f, b'E', b'L', b'F', 1, 1] => false,
        [0x7f, b'E', b'L', b'F', 2, 1] => true,
        _ => return None,
    };
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let bytes = header.get(at..at + bytes)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (offset, size, count) = if is_64 {
        (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?)
    } else {
        (number(0x20, 4)?, number(0x2e, 2)?, number(0x30, 2)?)
    };
    offset.checked_add(size * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_table() {
        let header = |class: u8, set: &[(usize, &[u8])]| {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
            for (at, value) in set {
                bytes[*at..*at + value.len()].copy_from_slice(value);
            }
            bytes
        };
        let wide = header(
            2,
            &[(0x28, &[0, 0x10, 0, 0, 1, 0, 0, 0]), (0x3a, &[64, 0]), (0x3c, &[3, 0])],
        );
        assert_eq!(length(&wide), Some(0x1_0000_1000 + 192));
        let narrow = header(1, &[(0x20, &[0, 0x10, 0, 0]), (0x2e, &[40, 0]), (0x30, &[2, 0])]);
        assert_eq!(length(&narrow), Some(0x1000 + 80));
        let endless = header(2, &[(0x28, &[0xff; 8]), (0x3a, &[64, 0]), (0x3c, &[3, 0])]);
        assert_eq!(length(&endless), None);
        assert_eq!(length(b"#!/bin/sh\n"), None);
        assert_eq!(length(&wide[..40]), None);
        assert_eq!(length(b""), None);
    }

    #[test]
    fn this_program_is_whole() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let length = length(&program[..HEADER_BYTES]).unwrap();
        assert!(
            length > 1000 && length <= u64::try_from(program.len()).unwrap(),
            "{length}"
        );
    }
}
