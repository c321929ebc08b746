//! An API server over a throwaway store, for trying clients by hand:
//! `cargo run -p tests --example api -- FOLDER [ADDRESS]` writes `FOLDER/kubeconfig`.

use std::path::PathBuf;

use anyhow::Context as _;
use tests::api_server::{ApiServer, TOKEN};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("usage: api FOLDER [ADDRESS]")?);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let server = ApiServer::start_at(&folder, &address).await?;
    let authority = folder.join("ca.pem");
    std::fs::write(&authority, &server.authority_pem)?;
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters:\n- name: here\n  cluster: {{server: '{}', certificate-authority: ca.pem}}\n\
         users:\n- name: admin\n  user: {{token: {TOKEN}}}\n\
         contexts:\n- name: here\n  context: {{cluster: here, user: admin}}\n",
        server.url()
    );
    std::fs::write(folder.join("kubeconfig"), kubeconfig)?;
    tokio::signal::ctrl_c().await?;
    server.stop().await;
    Ok(())
}
