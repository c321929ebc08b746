//! Which registries are believed, and at what time that is judged.
//!
//! The authorities are the system's and, on top, the operator's; none is built in. They are read when a pull needs them
//! and not kept: half a megabyte that a node needs for minutes a month.
//!
//! A node without a clock battery wakes up in 1970 and must still pull. While its clock is not vouched for, "not valid
//! yet" is forgiven, and nothing else is: the certificate is judged again at the beginning of its own validity.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::time::Wall;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::ImageError;

/// Where the time comes from: the later of what the node knows and what its clock says.
pub type Clock = Arc<dyn Fn() -> Wall + Send + Sync>;

/// Where distributions keep the certificate authorities they trust.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// What registries are judged by.
#[derive(Clone)]
pub struct Trust {
    /// The operator's authorities, as PEM.
    pub extra: Option<PathBuf>,
    pub clock: Clock,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("extra", &self.extra)
            .finish_non_exhaustive()
    }
}

impl Trust {
    pub(super) fn connector(&self) -> Result<TlsConnector, ImageError> {
        let mut roots = RootCertStore::empty();
        for bundle in system_bundle().into_iter().chain(self.extra.as_deref()) {
            // One damaged certificate among hundreds is no reason to trust none.
            let found = CertificateDer::pem_file_iter(bundle).map_err(|_| ImageError::NoTrust)?;
            roots.add_parsable_certificates(found.filter_map(Result::ok));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // Fails when there are no roots.
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let judge = Judge {
            inner: verifier.map_err(|_| ImageError::NoTrust)?,
            clock: self.clock.clone(),
        };
        connector(provider, judge, self.clock.clone()).map_err(|_| ImageError::NoTrust)
    }
}

/// The system's authorities, where there are any.
pub(crate) fn system_bundle() -> Option<&'static Path> {
    SYSTEM_BUNDLES.iter().map(Path::new).find(|bundle| bundle.exists())
}

/// How many certificates a file has.
pub(crate) fn certificates(path: &Path) -> std::io::Result<usize> {
    let bytes = std::fs::read(path)?;
    Ok(CertificateDer::pem_slice_iter(&bytes).filter(Result::is_ok).count())
}

fn connector(provider: Arc<CryptoProvider>, judge: Judge, clock: Clock) -> Result<TlsConnector, Error> {
    let config = rustls::ClientConfig::builder_with_details(provider, Arc::new(Time(clock)))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(judge))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

struct Time(Clock);

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Time")
    }
}

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let ms = u64::try_from((self.0)().ms).unwrap_or(0);
        Some(UnixTime::since_unix_epoch(Duration::from_millis(ms)))
    }
}

/// The usual verifier, but for a clock nobody vouches for.
struct Judge {
    inner: Arc<WebPkiServerVerifier>,
    clock: Clock,
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let at = |now| {
            self.inner
                .verify_server_cert(end_entity, intermediates, name, ocsp, now)
        };
        match at(now) {
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }))
                if !(self.clock)().trusted =>
            {
                at(not_before)
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
