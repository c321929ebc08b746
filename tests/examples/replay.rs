//! Replays a folder of recordings on any server:
//! `cargo run -p tests --example replay -- FOLDER https://HOST:PORT TOKEN CA.pem`

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tests::http::Client;
use tests::replay::replay;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().context("usage: replay FOLDER URL TOKEN CA.pem");
    let folder = PathBuf::from(next()?);
    let (url, token, authority) = (next()?, next()?, next()?);
    let authority = CertificateDer::from_pem_file(authority).context("reading the CA")?;
    let client = Client::new(&url, &token, authority)?;
    let report = replay(&folder, &client).await?;
    #[expect(clippy::print_stdout, reason = "the report is what this is for")]
    {
        println!("{report}");
    }
    ensure!(
        report.surprises().is_empty(),
        "the answers differ from what is recorded and listed"
    );
    Ok(())
}
