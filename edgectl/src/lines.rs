//! A stream of bytes as lines.

use crate::failure::Failure;

/// Pieces of a stream put together to lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// Hands over each line that ends in this piece, its end included.
    pub(crate) fn add(
        &mut self,
        piece: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            self.0.extend_from_slice(line);
            take(&std::mem::take(&mut self.0))?;
            rest = after;
        }
        self.0.extend_from_slice(rest);
        Ok(())
    }

    /// How much of a line is there that has not ended.
    pub(crate) fn begun(&self) -> usize {
        self.0.len()
    }

    /// What is there of a line that has not ended.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together() {
        let (mut lines, mut taken) = (Lines::default(), Vec::new());
        for piece in ["{\"a\"", ":1}\n\n{\"b\":2}\n{\"c", "\":3}\nrest"] {
            lines
                .add(piece.as_bytes(), |line| {
                    taken.push(String::from_utf8_lossy(line).into_owned());
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(taken, ["{\"a\":1}\n", "\n", "{\"b\":2}\n", "{\"c\":3}\n"]);
        assert_eq!((lines.begun(), lines.take()), (4, b"rest".to_vec()));
        assert_eq!(lines.begun(), 0);
    }
}
