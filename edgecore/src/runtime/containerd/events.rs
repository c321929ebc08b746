//! What containerd tells on its own, as "look at this pod again".
//!
//! Nothing is decided from an event's content, so losing or doubling one changes nothing. What cannot be lost is the
//! knowledge that events were lost: a broken stream is told as [`Event::Lost`], and [`Event::Back`] comes only when the
//! new one is known to be live, because containerd answers a subscription with its first event and not before. So one is
//! published to see it come back.

use std::collections::BTreeSet;
use std::time::Duration;

use containerd_client::events::{TaskExit, TaskStart};
use containerd_client::services::v1::{PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use prost::{Message as _, Name as _};
use prost_types::Any;
use proto::object::Uid;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tonic::{Status, Streaming};

use super::client::{Client, QUICK, within};
use crate::runtime::Event;
use crate::runtime::oci::names::pod_of;

/// Between two attempts to reach a containerd that does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Between two events published to see that a subscription is live.
const ECHO: Duration = Duration::from_millis(50);

const ECHO_TOPIC: &str = "/edgehold/echo";
const START_TOPIC: &str = "/tasks/start";
const EXIT_TOPIC: &str = "/tasks/exit";

/// Pods waiting for room in the channel: merged, and never more than there are.
type Waiting = BTreeSet<Uid>;

/// Runs until nobody listens any more.
pub(super) async fn watch(client: Client, namespace: String, events: mpsc::Sender<Event>) {
    // Whoever subscribes is told once that containerd is there.
    let mut lost = true;
    let mut said = false;
    loop {
        if let Ok(mut stream) = timeout(QUICK, subscribe(&client, &namespace))
            .await
            .unwrap_or_else(|_| Err(late()))
        {
            if std::mem::take(&mut lost) && events.send(Event::Back).await.is_err() {
                return;
            }
            said = false;
            if follow(&mut stream, &events).await.is_err() {
                return;
            }
            lost = true;
        }
        if !std::mem::replace(&mut said, true) && events.send(Event::Lost).await.is_err() {
            return;
        }
        tokio::select! {
            () = events.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

fn late() -> Status {
    Status::deadline_exceeded("subscribing to containerd's events")
}

/// A subscription that is live.
async fn subscribe(client: &Client, namespace: &str) -> Result<Streaming<Envelope>, Status> {
    let topics = [ECHO_TOPIC, START_TOPIC, EXIT_TOPIC];
    let filters = topics
        .map(|topic| format!("namespace=={namespace},topic==\"{topic}\""))
        .into();
    let mut service = client.events();
    let subscribed = service.subscribe(client.request(SubscribeRequest { filters }));
    let mut subscribed = std::pin::pin!(subscribed);
    loop {
        tokio::select! {
            stream = &mut subscribed => return stream.map(tonic::Response::into_inner),
            () = sleep(ECHO) => {}
        }
        let echo = PublishRequest {
            topic: ECHO_TOPIC.to_owned(),
            // Some type containerd knows; nobody reads it.
            event: Some(Any {
                type_url: TaskStart::full_name(),
                value: TaskStart::default().encode_to_vec(),
            }),
        };
        // One that cannot be published tells as much as a stream that does not come.
        drop(within(QUICK, client.events().publish(client.request(echo))).await);
    }
}

/// Nobody listens any more.
struct Closed;

/// Hands events on until the stream breaks.
async fn follow(stream: &mut Streaming<Envelope>, events: &mpsc::Sender<Event>) -> Result<(), Closed> {
    let mut waiting = Waiting::new();
    loop {
        tokio::select! {
            permit = events.reserve(), if !waiting.is_empty() => {
                let permit = permit.map_err(|_| Closed)?;
                if let Some(pod) = waiting.pop_first() {
                    permit.send(Event::Pod(pod));
                }
            }
            () = events.closed() => return Err(Closed),
            envelope = stream.message() => match envelope {
                Ok(Some(envelope)) => waiting.extend(pod(&envelope)),
                Ok(None) | Err(_) => return Ok(()),
            },
        }
    }
}

/// The pod an event is about.
fn pod(envelope: &Envelope) -> Option<Uid> {
    let value = envelope.event.as_ref()?.value.as_slice();
    match envelope.topic.as_str() {
        START_TOPIC => pod_of(&TaskStart::decode(value).ok()?.container_id),
        EXIT_TOPIC => {
            let exit = TaskExit::decode(value).ok()?;
            // A command run inside a container has a name of its own.
            if exit.id == exit.container_id {
                pod_of(&exit.container_id)
            } else {
                None
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_containers_own_exit_counts() {
        let uid = Uid::random([3; 16]);
        let container = format!("{uid}-0011223344556677");
        let exit = |id: &str| TaskExit {
            id: id.into(),
            container_id: container.clone(),
            ..TaskExit::default()
        };
        let envelope = |topic: &str, value: Vec<u8>| Envelope {
            topic: topic.into(),
            event: Some(Any { type_url: String::new(), value }),
            ..Envelope::default()
        };
        assert_eq!(pod(&envelope(EXIT_TOPIC, exit(&container).encode_to_vec())), Some(uid));
        assert_eq!(pod(&envelope(EXIT_TOPIC, exit("exec-1").encode_to_vec())), None);
        let start = TaskStart { container_id: container, pid: 1 };
        assert_eq!(pod(&envelope(START_TOPIC, start.encode_to_vec())), Some(uid));
        assert_eq!(pod(&envelope(ECHO_TOPIC, Vec::new())), None);
        assert_eq!(pod(&envelope(EXIT_TOPIC, vec![0xff; 9])), None);
    }
}
