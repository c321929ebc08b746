//! Archives for tests, byte by byte.

use super::BLOCK;

/// One entry, its content padded.
pub(in crate::images) fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    changed(name, kind, content, |_| {})
}

/// The same, with a say in its header before the checksum is made.
pub(in crate::images) fn changed(
    name: &str,
    kind: u8,
    content: &[u8],
    change: impl FnOnce(&mut [u8; BLOCK]),
) -> Vec<u8> {
    let mut header = [0; BLOCK];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    header[156] = kind;
    header[257..263].copy_from_slice(b"ustar\0");
    change(&mut header);
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut bytes = header.to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// A link of a kind to a target.
pub(in crate::images) fn link(name: &str, kind: u8, target: &str) -> Vec<u8> {
    changed(name, kind, b"", |header| {
        header[157..157 + target.len()].copy_from_slice(target.as_bytes());
    })
}

/// A pax header for the entry after it.
pub(in crate::images) fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        // The length counts its own digits.
        let length = (1..8)
            .map(|digits| rest + digits)
            .find(|length| length.to_string().len() + rest == *length)
            .unwrap();
        content.extend_from_slice(format!("{length} {key}=").as_bytes());
        content.extend_from_slice(value);
        content.push(b'\n');
    }
    entry("pax", b'x', &content)
}

/// The end of an archive.
pub(in crate::images) fn end() -> Vec<u8> {
    vec![0; 2 * BLOCK]
}
