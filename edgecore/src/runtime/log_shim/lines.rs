//! Cuts what a container writes into records of the CRI log format. Pure.

/// A longer line is cut into records marked `P`, the last of which is marked `F`.
pub(in crate::runtime) const LINE_BYTES_MAX: usize = 16 * 1024;

/// One of a container's two outputs.
#[derive(Debug)]
pub(in crate::runtime) struct Lines {
    /// As the format names it.
    stream: &'static str,
    /// What came after the last newline; at most [`LINE_BYTES_MAX`].
    pending: Vec<u8>,
}

impl Lines {
    pub(in crate::runtime) fn new(stream: &'static str) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Takes what was read and appends every record it completes to `out`.
    pub(in crate::runtime) fn push(&mut self, mut bytes: &[u8], stamp: &str, out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = LINE_BYTES_MAX - self.pending.len();
            // One more than fits, so that a line of exactly the limit and its newline is one record.
            let window = &bytes[..bytes.len().min(room + 1)];
            if let Some(end) = window.iter().position(|byte| *byte == b'\n') {
                self.record('F', &bytes[..end], stamp, out);
                bytes = &bytes[end + 1..];
            } else if window.len() > room {
                self.record('P', &bytes[..room], stamp, out);
                bytes = &bytes[room..];
            } else {
                self.pending.extend_from_slice(window);
                bytes = &[];
            }
        }
    }

    /// The output was closed: what is left is a line, newline or not.
    pub(in crate::runtime) fn finish(&mut self, stamp: &str, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.record('F', &[], stamp, out);
        }
    }

    fn record(&mut self, tag: char, rest: &[u8], stamp: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{stamp} {} {tag} ", self.stream).as_bytes());
        out.append(&mut self.pending);
        out.extend_from_slice(rest);
        out.push(b'\n');
        // A quiet container's log process keeps nothing.
        self.pending.shrink_to(256);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pushes: &[&[u8]], expected: &[(char, usize)]) {
        let (mut lines, mut out) = (Lines::new("stdout"), Vec::new());
        for push in pushes {
            lines.push(push, "T", &mut out);
        }
        lines.finish("T", &mut out);
        let seen: Vec<(char, usize)> = String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| {
                let rest = line.strip_prefix("T stdout ").unwrap();
                (rest.chars().next().unwrap(), rest.len() - 2)
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn lines_are_cut_at_newlines_and_at_the_limit() {
        check(&[], &[]);
        check(&[b"a\nbc\n\n"], &[('F', 1), ('F', 2), ('F', 0)]);
        check(&[b"a", b"b", b"\nc"], &[('F', 2), ('F', 1)]);
        let full = vec![b'x'; LINE_BYTES_MAX];
        check(&[&full, b"\n"], &[('F', LINE_BYTES_MAX)]);
        check(&[&full], &[('F', LINE_BYTES_MAX)]);
        check(&[&full, b"y\n"], &[('P', LINE_BYTES_MAX), ('F', 1)]);
        check(
            &[b"y", &full, &full],
            &[('P', LINE_BYTES_MAX), ('P', LINE_BYTES_MAX), ('F', 1)],
        );
    }
}
