//! DER as PEM text (RFC 7468). Reading it is rustls' work; this writes it, so that no second base64 comes along for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub const CERTIFICATE: &str = "CERTIFICATE";
pub const CERTIFICATE_REQUEST: &str = "CERTIFICATE REQUEST";
/// A private key in PKCS #8.
pub const PRIVATE_KEY: &str = "PRIVATE KEY";

/// Characters of base64 in a line.
const LINE: usize = 64;

/// One PEM block, its last line ended.
pub fn write(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::{PemObject as _, SectionKind};

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 47, 48, 49, 96, 200] {
            let der: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
            let text = write(PRIVATE_KEY, &der);
            assert!(text.ends_with("-----\n") && text.lines().all(|line| line.len() <= LINE));
            let (kind, read) = <(SectionKind, Vec<u8>)>::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!((kind, read), (SectionKind::PrivateKey, der));
        }
    }

    #[test]
    fn labels_are_those_that_readers_know() {
        for (label, kind) in [
            (CERTIFICATE, SectionKind::Certificate),
            (CERTIFICATE_REQUEST, SectionKind::Csr),
            (PRIVATE_KEY, SectionKind::PrivateKey),
        ] {
            let (read, _) = <(SectionKind, Vec<u8>)>::from_pem_slice(write(label, b"x").as_bytes()).unwrap();
            assert_eq!(read, kind);
        }
    }
}
