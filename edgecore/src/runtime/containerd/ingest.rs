//! Content on its way into containerd, resumable.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use containerd_client::services::v1::{
    AbortRequest, Info, StatusRequest, UpdateRequest, WriteAction, WriteContentRequest, WriteContentResponse,
};
use prost_types::FieldMask;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Code, Response, Status, Streaming};

use super::client::{Answer as _, Client, PROCESS, QUICK, Refusal, within};
use super::images::{TAKE_IN, pull_error};
use crate::images::{Descriptor, ImageError};
use crate::runtime::RuntimeError;

/// What goes to containerd in one message: large enough to be few, small enough for a small machine.
const WRITE_BYTES: usize = 256 * 1024;

/// Content on its way into containerd: one message, one answer.
#[derive(Debug)]
pub(super) struct Ingest<'a> {
    client: &'a Client,
    lease: &'a str,
    name: &'a str,
    template: WriteContentRequest,
    /// What containerd has.
    offset: u64,
    pending: Vec<u8>,
    /// Open from the first message on.
    stream: Option<(mpsc::Sender<WriteContentRequest>, Streaming<WriteContentResponse>)>,
    /// containerd had it all along.
    exists: bool,
}

impl<'a> Ingest<'a> {
    /// Nothing is sent yet; what an earlier attempt brought counts.
    pub(super) async fn begin(
        client: &'a Client,
        lease: &'a str,
        name: &'a str,
        descriptor: &Descriptor,
        labels: HashMap<String, String>,
    ) -> Result<Self, RuntimeError> {
        let reference = format!("edgehold-{}", descriptor.digest.hex());
        let status = client.request(StatusRequest { r#ref: reference.clone() });
        let status = within(QUICK, client.content().status(status))
            .await
            .optional()
            .or_error(TAKE_IN, name)?;
        let offset = status
            .and_then(|answer| u64::try_from(answer.status?.offset).ok())
            .unwrap_or(0);
        let size = i64::try_from(descriptor.size).unwrap_or(i64::MAX);
        let template = WriteContentRequest {
            action: WriteAction::Write.into(),
            r#ref: reference,
            total: size,
            expected: descriptor.digest.to_string(),
            labels,
            ..WriteContentRequest::default()
        };
        Ok(Self {
            client,
            lease,
            name,
            template,
            offset,
            pending: Vec::new(),
            stream: None,
            exists: false,
        })
    }

    /// What containerd has: the content goes on from there, or [`Ingest::restart`] is called.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Forgets what an earlier attempt brought.
    pub(super) async fn restart(&mut self) -> Result<(), RuntimeError> {
        let client = self.client;
        abort(client, &self.template.r#ref).await.or_error(TAKE_IN, self.name)?;
        (self.offset, self.stream) = (0, None);
        Ok(())
    }

    pub(super) async fn push(&mut self, mut bytes: &[u8]) -> Result<(), RuntimeError> {
        while !bytes.is_empty() && !self.exists {
            let (part, rest) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.pending.len()));
            self.pending.extend_from_slice(part);
            bytes = rest;
            if self.pending.len() == WRITE_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Ends it. Damaged content is thrown away, so that the next attempt starts over.
    pub(super) async fn commit(mut self) -> Result<(), RuntimeError> {
        self.flush().await?;
        let (client, name) = (self.client, self.name);
        if !self.exists {
            match self.send(WriteAction::Commit, Vec::new()).await.made() {
                Ok(made) => self.exists = !made,
                Err(refusal) if refusal.is(Code::FailedPrecondition) || refusal.is(Code::OutOfRange) => {
                    abort(client, &self.template.r#ref).await.or_error(TAKE_IN, name)?;
                    return Err(pull_error(
                        name,
                        ImageError::Mismatch { digest: self.template.expected.clone() },
                    ));
                }
                Err(refusal) => return Err(refusal.error(TAKE_IN, name)),
            }
        }
        // What it points at is new even when it is not.
        if self.exists { self.relabel().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), RuntimeError> {
        let data = std::mem::take(&mut self.pending);
        if data.is_empty() || self.exists {
            return Ok(());
        }
        let size = u64::try_from(data.len()).expect("at most one message");
        self.exists = !self
            .send(WriteAction::Write, data)
            .await
            .made()
            .or_error(TAKE_IN, self.name)?;
        self.offset += size;
        Ok(())
    }

    async fn send(&mut self, action: WriteAction, data: Vec<u8>) -> Result<(), Refusal> {
        let message = WriteContentRequest {
            action: action.into(),
            offset: i64::try_from(self.offset).unwrap_or(i64::MAX),
            data,
            ..self.template.clone()
        };
        let ended = || Refusal::Status(Status::aborted("containerd ended the stream"));
        let stream = match &mut self.stream {
            Some((sender, stream)) => {
                // There is room: every message waits for its answer.
                sender.try_send(message).map_err(|_| ended())?;
                stream
            }
            None => {
                let (sender, receiver) = mpsc::channel(1);
                sender.try_send(message).map_err(|_| ended())?;
                let client = self.client;
                let request = client.leased(self.lease, Messages(receiver));
                let stream = within(PROCESS, client.content().write(request)).await?;
                &mut self.stream.insert((sender, stream)).1
            }
        };
        let answer = async { stream.message().await.map(Response::new) };
        within(PROCESS, answer).await?.ok_or_else(ended).map(drop)
    }

    async fn relabel(&self) -> Result<(), RuntimeError> {
        let labels = self.template.labels.clone();
        if labels.is_empty() {
            return Ok(());
        }
        let client = self.client;
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = Info {
            digest: self.template.expected.clone(),
            labels,
            ..Info::default()
        };
        let update = UpdateRequest { info: Some(info), update_mask: Some(FieldMask { paths }) };
        let updated = within(QUICK, client.content().update(client.leased(self.lease, update))).await;
        updated.or_error(TAKE_IN, self.name).map(drop)
    }
}

/// What is sent, as the stream tonic wants.
#[derive(Debug)]
struct Messages(mpsc::Receiver<WriteContentRequest>);

impl Stream for Messages {
    type Item = WriteContentRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WriteContentRequest>> {
        self.0.poll_recv(context)
    }
}

async fn abort(client: &Client, reference: &str) -> Result<(), Refusal> {
    let request = client.request(AbortRequest { r#ref: reference.to_owned() });
    within(QUICK, client.content().abort(request))
        .await
        .optional()
        .map(drop)
}
