//! What travels between the cores: frames of version 1. `docs/protocols/sync.md` is normative.
//!
//! A frame is a version byte and a postcard body, at most [`FRAME_MAX`] bytes in all. Bodies of objects inside are
//! codings of [`crate::delta`] with the dictionary that the hello settled.

use serde::{Deserialize, Serialize};

use crate::digest::{Branch, Digest, Prefix};
use crate::object::{Epoch, Revision, Uid};
use crate::time::BootId;

/// The version of every frame here.
pub const VERSION: u8 = 1;

/// Largest frame, version byte included.
pub const FRAME_MAX: usize = 16 * 1024;

/// Largest coding of one object or report. A larger object is refused when it is written.
pub const OBJECT_MAX: usize = 1_572_864;

/// A frame. Variants are only appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame {
    /// Edge to cloud, the first of a session.
    Hello(Hello),
    /// Cloud to edge, the answer.
    Welcome(Welcome),
    /// Cloud to edge: no session, and why.
    Refuse(Refusal),
    /// Edge to cloud: the welcome arrived. Only now does the session replace another one of the node.
    Confirm { session: u32 },
    /// Cloud to edge: changes of the view.
    Down { session: u32, seq: u32, items: Vec<Down> },
    /// Edge to cloud: what happened on the node.
    Up { session: u32, seq: u32, items: Vec<Up> },
    /// Everything up to this frame of the other end is durable here, but for the reports of these handles, whose base is
    /// not known: they are needed in full. Repeated until they came.
    Ack { session: u32, seq: u32, need_full: Vec<u32> },
    /// What do you hold under this prefix?
    Ask { session: u32, of: Side, prefix: Prefix },
    /// The answer.
    Tell { session: u32, of: Side, prefix: Prefix, branch: Branch },
    /// Cloud to edge: something got lost, say hello again.
    Again { session: u32 },
}

/// Which set an [`Frame::Ask`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The view: what the edge should hold.
    View,
    /// The reports: what the cloud should hold of the edge.
    Reports,
}

/// Who the edge is and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest and highest frame version it speaks.
    pub versions: (u8, u8),
    pub dictionary: u32,
    pub dictionary_hash: [u8; 8],
    pub boot: BootId,
    /// How often the edge lets itself be heard at least, in seconds.
    pub beat_s: u16,
    /// Tells this hello from every other one; the welcome repeats it.
    pub nonce: [u8; 8],
    pub epoch: Epoch,
    /// The revision of the view that was last known to be held whole.
    pub applied: Revision,
    pub view: Digest,
    pub count: u32,
    pub incarnation: [u8; 8],
    /// The number of the last event that was made durable.
    pub number: u64,
    /// Of the reports that the cloud acknowledged.
    pub reports: Digest,
}

/// How the session begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    pub nonce: [u8; 8],
    pub session: u32,
    pub version: u8,
    pub dictionary: u32,
    pub epoch: Epoch,
    /// The cloud's time, milliseconds since 1970.
    pub now_ms: i64,
    pub view: ViewStart,
    pub reports: ReportsStart,
    /// The cloud saw more of this incarnation than the edge remembers: it goes on under this one.
    pub incarnation: Option<[u8; 8]>,
}

/// What follows about the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViewStart {
    /// The edge holds the view of this revision; nothing follows.
    Same(Revision),
    /// Changes follow.
    Changes,
    /// The cloud asks first.
    Compare,
}

/// What follows about the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportsStart {
    Same,
    /// The edge asks first.
    Compare,
}

/// Why there is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// No common frame version.
    Version,
    /// Another machine holds this node's key and is connected.
    DuplicateIdentity,
    /// No such node, or its enrolment was revoked.
    Unknown,
    /// The certificate has expired: only [`Up::Request`] is answered.
    Expired,
    /// The cloud is not ready for this node yet; say hello again.
    Later,
}

/// One change of the view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// An entry the edge did not hold; it gets the next handle. `key` is the coding of the list (kind, namespace, name).
    New {
        uid: Uid,
        key: Vec<u8>,
        revision: Revision,
        body: Body,
    },
    Change {
        handle: u32,
        revision: Revision,
        body: Body,
    },
    Delete {
        handle: u32,
    },
    /// The edge now holds the view of this revision, and this is its digest.
    Mark {
        revision: Revision,
        digest: Digest,
    },
    /// A piece of a body too large for one frame.
    Chunk(Vec<u8>),
    /// The answer to [`Up::Request`]: [`crate::enrol::Credentials`] as JSON.
    Certificate(Vec<u8>),
}

/// One thing that happened on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// What the node sees of an object it holds. `check` are two bytes of the hash of the whole report.
    Report {
        handle: u32,
        body: Body,
        check: [u8; 2],
    },
    /// The object was being deleted and nothing of it runs any more.
    Gone {
        handle: u32,
    },
    Event {
        number: u64,
        body: Vec<u8>,
    },
    /// A piece of a body too large for one frame.
    Chunk(Vec<u8>),
    /// A certificate signing request, PEM.
    Request(Vec<u8>),
}

/// The content of an entry or a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    Full(Vec<u8>),
    /// Against what the receiver holds of the same entry.
    Patch(Vec<u8>),
    /// Against what the receiver holds of another entry.
    Like {
        handle: u32,
        patch: Vec<u8>,
    },
    /// [`Body::Full`], from the chunks since the last body.
    FullChunks,
    /// [`Body::Patch`], from the chunks since the last body.
    PatchChunks,
}

impl Body {
    /// Bytes that it takes in a frame, but for a few.
    pub fn size(&self) -> usize {
        match self {
            Self::Full(bytes) | Self::Patch(bytes) | Self::Like { patch: bytes, .. } => bytes.len(),
            Self::FullChunks | Self::PatchChunks => 0,
        }
    }
}

/// Bytes that are no frame of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is longer than {FRAME_MAX}")]
    TooLong(usize),
    #[error("frame version {0} is not spoken here")]
    Version(u8),
    #[error("{0} bytes follow the frame")]
    Trailing(usize),
    #[error("the frame cannot be read")]
    Malformed(#[source] postcard::Error),
    #[error("the frame is empty")]
    Empty,
}

impl Frame {
    /// The bytes of a frame.
    ///
    /// # Panics
    /// Panics when the frame is longer than [`FRAME_MAX`]: whoever fills frames counts.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = postcard::to_extend(self, vec![VERSION]).expect("a frame is always writable");
        assert!(
            bytes.len() <= FRAME_MAX,
            "a frame of {} bytes was filled past its limit",
            bytes.len()
        );
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        if bytes.len() > FRAME_MAX {
            return Err(FrameError::TooLong(bytes.len()));
        }
        match bytes.split_first() {
            None => Err(FrameError::Empty),
            Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
                Ok((frame, [])) => Ok(frame),
                Ok((_, more)) => Err(FrameError::Trailing(more.len())),
                Err(error) => Err(FrameError::Malformed(error)),
            },
            Some((other, _)) => Err(FrameError::Version(*other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<(Frame, &'static str)> {
        let hello = Hello {
            versions: (1, 1),
            dictionary: 300,
            dictionary_hash: [1; 8],
            boot: BootId([2; 16]),
            beat_s: 30,
            nonce: [3; 8],
            epoch: Epoch(4),
            applied: Revision(200),
            view: Digest([5; 8]),
            count: 6,
            incarnation: [7; 8],
            number: 8,
            reports: Digest([9; 8]),
        };
        let welcome = Welcome {
            nonce: [1; 8],
            session: 2,
            version: 1,
            dictionary: 3,
            epoch: Epoch(4),
            now_ms: -1,
            view: ViewStart::Same(Revision(5)),
            reports: ReportsStart::Compare,
            incarnation: Some([6; 8]),
        };
        let key = Uid([0xaa; 16]);
        let items = vec![
            Down::New {
                uid: key,
                key: vec![1],
                revision: Revision(2),
                body: Body::Full(vec![3, 4]),
            },
            Down::Change { handle: 5, revision: Revision(6), body: Body::Patch(vec![7]) },
            Down::Change {
                handle: 8,
                revision: Revision(9),
                body: Body::Like { handle: 1, patch: vec![] },
            },
            Down::Delete { handle: 10 },
            Down::Mark { revision: Revision(11), digest: Digest([12; 8]) },
            Down::Chunk(vec![13]),
            Down::Certificate(vec![15]),
        ];
        let ups = vec![
            Up::Report { handle: 1, body: Body::FullChunks, check: [2, 3] },
            Up::Gone { handle: 4 },
            Up::Event { number: 5, body: vec![6] },
            Up::Chunk(vec![7]),
            Up::Request(vec![8]),
            Up::Report { handle: 9, body: Body::PatchChunks, check: [0, 0] },
        ];
        let branch = Branch::Leaf(vec![(key, crate::digest::EntryHash([0xbb; 16]))]);
        vec![
            (
                Frame::Hello(hello),
                "01000101ac020101010101010101020202020202020202020202020202021e030303030303030304c8010505050505050505\
                 060707070707070707080909090909090909",
            ),
            (
                Frame::Welcome(welcome),
                "010101010101010101010201030401000501010606060606060606",
            ),
            (Frame::Refuse(Refusal::Later), "010204"),
            (Frame::Confirm { session: 300 }, "0103ac02"),
            (
                Frame::Down { session: 1, seq: 2, items },
                "010401020700aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0101020002030401050601010701080902010002\
                 0a030b0c0c0c0c0c0c0c0c04010d05010f",
            ),
            (
                Frame::Up { session: 1, seq: 2, items: ups },
                "010501020600010302030104020501060301070401080009040000",
            ),
            (Frame::Ack { session: 1, seq: 2, need_full: vec![3] }, "010601020103"),
            (
                Frame::Ask { session: 1, of: Side::Reports, prefix: Prefix::default() },
                "010701010000",
            ),
            (
                Frame::Tell {
                    session: 1,
                    of: Side::View,
                    prefix: Prefix::default(),
                    branch,
                },
                "0108010000000001aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
            ),
            (Frame::Again { session: 1 }, "010901"),
        ]
    }

    /// A frame's bytes are a promise to every node in the field: a change here is a new version.
    #[test]
    fn golden_bytes() {
        for (frame, golden) in samples() {
            let bytes = frame.encode();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden.replace(' ', ""), "{frame:?}");
            assert_eq!(Frame::decode(&bytes), Ok(frame));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert_eq!(Frame::decode(&[]), Err(FrameError::Empty));
        assert_eq!(Frame::decode(&[2, 0]), Err(FrameError::Version(2)));
        assert!(matches!(Frame::decode(&[VERSION, 200]), Err(FrameError::Malformed(_))));
        assert_eq!(Frame::decode(&[VERSION, 6, 1, 2, 0, 9]), Err(FrameError::Trailing(1)));
        let limit = |chunk: usize| Frame::Up { session: 1, seq: 1, items: vec![Up::Chunk(vec![0; chunk])] };
        let most = FRAME_MAX - 8;
        assert_eq!(limit(most).encode().len(), FRAME_MAX);
        assert_eq!(
            Frame::decode(&[VERSION].repeat(FRAME_MAX + 1)),
            Err(FrameError::TooLong(FRAME_MAX + 1))
        );
    }

    #[test]
    fn mutated_frames_never_panic() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed % below as u64).unwrap()
        };
        let samples = samples();
        for round in 0..20_000 {
            let mut bytes = samples[round % samples.len()].0.encode();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                    1 => bytes.truncate(at + 1),
                    _ => bytes.insert(at, u8::try_from(random(256)).unwrap()),
                }
            }
            if let Ok(frame) = Frame::decode(&bytes) {
                assert_eq!(Frame::decode(&frame.encode()).as_ref(), Ok(&frame));
            }
        }
    }
}
