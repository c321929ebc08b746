//! A reader for the little DER we take from outside ourselves: certification requests and subject names.
//!
//! Certificates are parsed and verified by webpki. This reads definite lengths only, as DER demands, copies nothing and
//! never recurses.

/// Tags this reader is asked for.
pub mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OID: u8 = 0x06;
    pub const UTF8_STRING: u8 = 0x0c;
    pub const PRINTABLE_STRING: u8 = 0x13;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
}

/// What is left to read.
#[derive(Debug, Clone, Copy)]
pub struct Der<'a> {
    rest: &'a [u8],
}

/// One value with its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    /// Tag, length and content: what signatures cover.
    pub whole: &'a [u8],
}

/// Bytes that are not the DER expected here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed DER")]
pub struct DerError;

impl<'a> Der<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next value, whatever it is.
    pub fn element(&mut self) -> Result<Element<'a>, DerError> {
        let [tag, first, ..] = *self.rest else {
            return Err(DerError);
        };
        let (header, length) = match first {
            0..=0x7f => (2, usize::from(first)),
            // One and two length bytes reach 64 KiB, more than anything read here; DER wants the shortest form.
            0x81 => match self.rest.get(2) {
                Some(&low @ 0x80..) => (3, usize::from(low)),
                _ => return Err(DerError),
            },
            0x82 => match self.rest.get(2..4) {
                Some(&[high, low]) if high > 0 => (4, usize::from(high) << 8 | usize::from(low)),
                _ => return Err(DerError),
            },
            _ => return Err(DerError),
        };
        let whole = self.rest.get(..header + length).ok_or(DerError)?;
        self.rest = &self.rest[header + length..];
        Ok(Element { tag, content: &whole[header..], whole })
    }

    /// The next value, which must have this tag.
    pub fn expect(&mut self, tag: u8) -> Result<Element<'a>, DerError> {
        let element = self.element()?;
        if element.tag == tag { Ok(element) } else { Err(DerError) }
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), DerError> {
        if self.is_empty() { Ok(()) } else { Err(DerError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        let check = |bytes: &[u8], content: Option<usize>| {
            let read = Der::new(bytes).element().ok().map(|element| element.content.len());
            assert_eq!(read, content, "{:02x?}", &bytes[..bytes.len().min(5)]);
        };
        let long = |header: &[u8], length: usize| [header, &vec![0; length]].concat();
        check(&[0x02, 0x00], Some(0));
        check(&long(&[0x30, 0x7f], 0x7f), Some(0x7f));
        check(&long(&[0x30, 0x81, 0x80], 0x80), Some(0x80));
        check(&long(&[0x30, 0x82, 0x01, 0x00], 0x100), Some(0x100));
        check(&long(&[0x30, 0x82, 0xff, 0xff], 0xffff), Some(0xffff));
        // Cut short, not the shortest form, indefinite, larger than anything read here.
        check(&[], None);
        check(&[0x30], None);
        check(&[0x30, 0x01], None);
        check(&long(&[0x30, 0x81, 0x7f], 0x7f), None);
        check(&long(&[0x30, 0x82, 0x00, 0xff], 0xff), None);
        check(&[0x30, 0x80, 0x00, 0x00], None);
        check(&long(&[0x30, 0x83, 0x01, 0x00, 0x00], 0x10000), None);
    }

    #[test]
    fn trailing_bytes_and_other_tags_are_errors() {
        let mut der = Der::new(&[0x02, 0x01, 0x05, 0x00]);
        assert_eq!(der.expect(tag::INTEGER).unwrap().content, [5]);
        assert_eq!(der.end(), Err(DerError));
        assert_eq!(Der::new(&[0x02, 0x01, 0x05]).expect(tag::SEQUENCE), Err(DerError));
    }
}
