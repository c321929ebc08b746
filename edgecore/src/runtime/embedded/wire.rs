//! What an edge core and a pod's shim say to each other: one message each way per packet of a Unix socket, so that a
//! message is whole or not there.
//!
//! A message is `[version][postcard]`, and the version is that from which on this message is understood: the messages of
//! version 1 keep their bytes for ever, so that an edge core of any release can list, signal, start and watch what a shim
//! of any other release holds. A shim that is asked for more than it knows says so.

use serde::{Deserialize, Serialize};

/// The latest that this program speaks.
pub(super) const VERSION: u8 = 1;

/// Neither side sends or reads more at once.
pub(super) const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Containers of one pod at a time, old attempts among them.
pub(super) const CONTAINERS_MAX: usize = 64;

/// Where a shim listens, in the pod's run folder.
pub(super) const SOCKET: &str = "shim.sock";
/// Locked for as long as a shim is there.
pub(super) const LOCK: &str = "shim.lock";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Which containers it holds.
    List,
    /// [`Answer::Changed`] now and whenever something happened, for as long as the connection lasts.
    Watch,
    /// To a container's first process.
    Signal { id: String, signal: u32 },
    /// Makes the container's first process and lets it run.
    Start { id: String },
    /// The shim ends if it holds nothing.
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Containers(Vec<Held>),
    Changed,
    /// It holds no such container.
    Missing,
    /// In words for people.
    Refused(String),
}

/// A container that a shim holds, from the making of its first process until its end is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) id: String,
    /// 0 while it is being made.
    pub(super) pid: u32,
}

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("the message is of version {0}, and this program speaks {VERSION}")]
    Later(u8),
    #[error("the message cannot be read")]
    Garbled,
}

pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_extend(message, vec![VERSION]).unwrap_or_default()
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    match bytes.split_first() {
        Some((version, _)) if *version > VERSION => Err(WireError::Later(*version)),
        Some((1..=VERSION, body)) => postcard::from_bytes(body).map_err(|_| WireError::Garbled),
        Some(_) | None => Err(WireError::Garbled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What shims of earlier releases say and understand.
    #[test]
    fn golden() {
        let id = || "ab".to_owned();
        let requests: [(Request, &[u8]); 5] = [
            (Request::List, b"\x01\x00"),
            (Request::Watch, b"\x01\x01"),
            (Request::Signal { id: id(), signal: 15 }, b"\x01\x02\x02ab\x0f"),
            (Request::Start { id: id() }, b"\x01\x03\x02ab"),
            (Request::End, b"\x01\x04"),
        ];
        for (request, bytes) in requests {
            assert_eq!(encode(&request), bytes, "{request:?}");
            assert_eq!(decode::<Request>(bytes), Ok(request));
        }
        let answers: [(Answer, &[u8]); 5] = [
            (Answer::Done, b"\x01\x00"),
            (
                Answer::Containers(vec![Held { id: id(), pid: 300 }]),
                b"\x01\x01\x01\x02ab\xac\x02",
            ),
            (Answer::Changed, b"\x01\x02"),
            (Answer::Missing, b"\x01\x03"),
            (Answer::Refused("no".into()), b"\x01\x04\x02no"),
        ];
        for (answer, bytes) in answers {
            assert_eq!(encode(&answer), bytes, "{answer:?}");
            assert_eq!(decode::<Answer>(bytes), Ok(answer));
        }
    }

    #[test]
    fn what_is_later_or_garbled_is_told_apart() {
        assert_eq!(decode::<Request>(b"\x02\x00"), Err(WireError::Later(2)));
        for bytes in [
            b"".as_slice(),
            b"\x00\x00",
            b"\x01",
            b"\x01\x09",
            b"\x01\x02\xff\xff\xff\xff\x0f",
        ] {
            assert_eq!(decode::<Request>(bytes), Err(WireError::Garbled), "{bytes:?}");
        }
    }

    #[test]
    fn the_longest_list_fits() {
        let held = Held { id: "x".repeat(76), pid: u32::MAX };
        let all = encode(&Answer::Containers(vec![held; CONTAINERS_MAX]));
        assert!(all.len() <= MESSAGE_BYTES_MAX, "{}", all.len());
    }
}
