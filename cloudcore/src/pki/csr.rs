//! Certification requests (PKCS #10) of P-256 keys, of which only the key counts: every name is the authority's to give.

use daemon::der::{Der, DerError, tag};
use daemon::trust::sha256;
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::{self, PemObject as _};

/// What stands before the point in the SubjectPublicKeyInfo of every uncompressed P-256 key.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// ecdsa-with-SHA256, the content of its AlgorithmIdentifier.
const ECDSA_WITH_SHA256: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

/// A public key whose holder signed the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenKey {
    point: Vec<u8>,
    hash: [u8; 32],
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum CsrError {
    #[error("request is not PEM with one CERTIFICATE REQUEST")]
    Pem(#[source] pem::Error),
    #[error("request is malformed")]
    Der(#[source] DerError),
    #[error("request is not for a P-256 key signed with SHA-256")]
    Algorithm,
    #[error("request is not signed by its own key")]
    Signature,
}

impl ProvenKey {
    /// Takes the key out of a request and verifies that its holder signed it.
    pub fn from_pem(text: &str) -> Result<Self, CsrError> {
        let request = CertificateSigningRequestDer::from_pem_slice(text.as_bytes()).map_err(CsrError::Pem)?;
        Self::from_der(&request)
    }

    fn from_der(request: &[u8]) -> Result<Self, CsrError> {
        let parts = parts(request).map_err(CsrError::Der)?;
        if parts.algorithm != ECDSA_WITH_SHA256 {
            return Err(CsrError::Algorithm);
        }
        let point = parts.key.strip_prefix(&P256_PREFIX).ok_or(CsrError::Algorithm)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
            .verify(parts.signed, parts.signature)
            .map_err(|_| CsrError::Signature)?;
        Ok(Self { point: point.to_vec(), hash: sha256(parts.key) })
    }

    /// SHA-256 over the SubjectPublicKeyInfo.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }
}

impl PublicKeyData for ProvenKey {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

struct Parts<'a> {
    signed: &'a [u8],
    key: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

fn parts(request: &[u8]) -> Result<Parts<'_>, DerError> {
    let mut outer = Der::new(request);
    let mut request = Der::new(outer.expect(tag::SEQUENCE)?.content);
    outer.end()?;
    let info = request.expect(tag::SEQUENCE)?;
    let algorithm = request.expect(tag::SEQUENCE)?.content;
    let signature = request.expect(tag::BIT_STRING)?.content;
    request.end()?;
    let mut fields = Der::new(info.content);
    fields.expect(tag::INTEGER)?;
    fields.expect(tag::SEQUENCE)?;
    let key = fields.expect(tag::SEQUENCE)?.whole;
    Ok(Parts {
        signed: info.whole,
        key,
        algorithm,
        // The first byte counts unused bits; a signature is whole bytes.
        signature: signature.strip_prefix(&[0]).ok_or(DerError)?,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    fn request(key: &KeyPair) -> Vec<u8> {
        let params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
        params.serialize_request(key).unwrap().der().to_vec()
    }

    #[test]
    fn a_request_proves_its_key() {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
        let request = params.serialize_request(&key).unwrap();
        let pem = daemon::pem::write(daemon::pem::CERTIFICATE_REQUEST, request.der());
        let proven = ProvenKey::from_pem(&pem).unwrap();
        assert_eq!(proven.hash(), sha256(&key.subject_public_key_info()));
        assert_eq!(proven.subject_public_key_info(), key.subject_public_key_info());
        assert!(matches!(ProvenKey::from_pem("nothing"), Err(CsrError::Pem(_))));
    }

    #[test]
    fn other_algorithms_are_refused() {
        for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            assert!(matches!(ProvenKey::from_der(&request(&key)), Err(CsrError::Algorithm)));
        }
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let good = request(&KeyPair::generate().unwrap());
        let key = ProvenKey::from_der(&good).unwrap();
        for at in 0..good.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= change;
                assert_ne!(ProvenKey::from_der(&bad).ok().as_ref(), Some(&key), "byte {at}");
            }
            assert!(ProvenKey::from_der(&good[..at]).is_err());
        }
        assert!(ProvenKey::from_der(&[good, vec![0]].concat()).is_err());
    }
}
