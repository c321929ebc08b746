//! Moves frames between one connection and the session task.

use daemon::carrier::CloseCode;
use proto::frame::{Down, Frame, Up};
use proto::session::Carrier;
use tokio::sync::mpsc;

use super::quic::{DialError, Link, LinkError};

/// What the session task is told.
pub(super) enum Event {
    Dialled(Result<Box<Link>, DialError>),
    Frame(Carrier, Vec<u8>),
    Lost(Carrier, Lost),
    /// New credentials, as JSON, over a connection that was for nothing else.
    Credentials(Vec<u8>),
}

/// How a connection ended.
pub(super) struct Lost {
    pub(super) why: String,
    pub(super) barred: bool,
    /// By UDP, sent and received.
    pub(super) bytes: (u64, u64),
}

/// Moves frames both ways until the link ends or the session task hangs up.
pub(super) async fn frames(
    mut link: Link,
    carrier: Carrier,
    mut queue: mpsc::Receiver<Vec<u8>>,
    events: mpsc::Sender<Event>,
) {
    let (why, barred) = loop {
        tokio::select! {
            frame = queue.recv() => match frame {
                Some(frame) => {
                    if let Err(error) = link.send(&frame).await {
                        break told(error);
                    }
                }
                None => {
                    link.close(CloseCode::DONE);
                    break ("hung up".to_owned(), false);
                }
            },
            frame = link.recv() => match frame {
                Ok(Some(frame)) => {
                    if events.send(Event::Frame(carrier, frame)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break ("the cloud ended the session".to_owned(), false),
                Err(error) => break told(error),
            },
        }
    };
    let lost = Lost { why, barred, bytes: link.bytes() };
    // A session that has ended needs not be told.
    let _ = events.send(Event::Lost(carrier, lost)).await;
}

/// Asks for a new certificate and for nothing else.
pub(super) async fn renewal(mut link: Link, carrier: Carrier, csr: String, events: mpsc::Sender<Event>) {
    let ask = Frame::Up {
        session: 0,
        seq: 1,
        items: vec![Up::Request(csr.into_bytes())],
    };
    let (why, barred) = match exchange(&mut link, &ask).await {
        Ok(Some(credentials)) => {
            let _ = events.send(Event::Credentials(credentials)).await;
            ("the certificate was renewed".to_owned(), false)
        }
        Ok(None) => ("the cloud gave no new certificate".to_owned(), false),
        Err(error) => told(error),
    };
    link.close(CloseCode::DONE);
    let lost = Lost { why, barred, bytes: link.bytes() };
    let _ = events.send(Event::Lost(carrier, lost)).await;
}

async fn exchange(link: &mut Link, ask: &Frame) -> Result<Option<Vec<u8>>, LinkError> {
    link.send(&ask.encode()).await?;
    let Some(answer) = link.recv().await? else {
        return Ok(None);
    };
    Ok(match Frame::decode(&answer) {
        Ok(Frame::Down { items, .. }) => items.into_iter().find_map(|item| match item {
            Down::Certificate(credentials) => Some(credentials),
            _ => None,
        }),
        Ok(_) | Err(_) => None,
    })
}

fn told(error: LinkError) -> (String, bool) {
    let barred = error.is_barred();
    (format!("{:#}", anyhow::Error::new(error)), barred)
}
