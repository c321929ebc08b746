//! What single machines do; whole conversations are the simulator's.

use super::edge::{Batch, Edge, Input, News, Recovered};
use super::*;
use crate::frame::{FRAME_MAX, Frame, ReportsStart, Up, VERSION, ViewStart, Welcome};
use crate::object::{Key, Revision, Uid};
use crate::time::BootId;

/// An edge that holds one pod and has no link.
fn edge() -> (Edge, Uid) {
    let uid = Uid([1; 16]);
    let mut recovered = Recovered { incarnation: [1; 8], ..Recovered::default() };
    let hash = crate::digest::EntryHash::of(&Key::new("Pod", "default", "one"), uid, &Value::map());
    recovered.held.insert(uid, hash);
    (Edge::new(BootId([1; 16]), 30, 1, recovered), uid)
}

fn event(text: &str) -> Input {
    Input::Event(Value::from([("message", text)]))
}

/// Carries its first connection to a session in which nothing is said yet.
fn connect(edge: &mut Edge) {
    edge.handle(Mono(0), Input::Connected(Carrier(1)));
    let hello = loop {
        match edge.poll_effect() {
            Some(Effect::Send(_, frame)) => break Frame::decode(&frame).unwrap(),
            Some(Effect::Commit(_)) => edge.committed(Mono(0), Ok(Vec::new()), &()),
            Some(_) => {}
            None => panic!("no hello"),
        }
    };
    let Frame::Hello(hello) = hello else {
        panic!("{hello:?}")
    };
    let welcome = Frame::Welcome(Welcome {
        nonce: hello.nonce,
        session: 7,
        version: VERSION,
        dictionary: hello.dictionary,
        epoch: hello.epoch,
        now_ms: 0,
        view: ViewStart::Same(Revision(1)),
        reports: ReportsStart::Same,
        incarnation: None,
    });
    edge.handle(Mono(0), Input::Frame(welcome.encode()));
    assert_eq!(sent(edge).len(), 1, "the confirmation");
}

/// The frames that it sends now; whatever it asks for is made durable.
fn sent(edge: &mut Edge) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(effect) = edge.poll_effect() {
        match effect {
            Effect::Send(_, frame) => frames.push(Frame::decode(&frame).unwrap()),
            Effect::Commit(_) => edge.committed(Mono(0), Ok(Vec::new()), &()),
            Effect::Hangup(_) | Effect::Tell(_) => {}
        }
    }
    frames
}

/// What it asks to be made durable now, which then is.
fn commits(edge: &mut Edge, now: Mono) -> Vec<Batch> {
    let mut found = Vec::new();
    while let Some(effect) = edge.poll_effect() {
        let Effect::<Batch, News>::Commit(batch) = effect else {
            continue;
        };
        found.push(batch);
        edge.committed(now, Ok(Vec::new()), &());
    }
    found
}

#[test]
fn what_happens_is_gathered_while_something_waits_to_be_acknowledged() {
    let (mut edge, uid) = edge();
    connect(&mut edge);
    let report = |edge: &mut Edge, text: &str| {
        edge.handle(Mono(0), Input::Reports(vec![(uid, Value::from([("message", text)]))]));
        sent(edge)
    };
    assert_eq!(report(&mut edge, "first").len(), 1);
    for text in ["second", "third"] {
        edge.handle(Mono(0), event(text));
        assert_eq!(report(&mut edge, text), []);
    }
    let ack = |seq| Input::Frame(Frame::Ack { session: 7, seq, need_full: vec![] }.encode());
    edge.handle(Mono(0), ack(1));
    let frames = sent(&mut edge);
    let [Frame::Up { items, .. }] = &frames[..] else {
        panic!("{frames:?}")
    };
    // The report as it is now, and both events.
    assert_eq!(items.len(), 3);
    edge.handle(Mono(0), ack(2));
    assert_eq!(sent(&mut edge), []);
    assert_eq!(report(&mut edge, "fourth").len(), 1);
}

#[test]
fn gone_is_said_again_of_what_was_there_again() {
    let (mut edge, uid) = edge();
    connect(&mut edge);
    let mut seq = 0;
    let mut next = |edge: &mut Edge, input: Input| {
        edge.handle(Mono(0), input);
        let frames = sent(edge);
        let [Frame::Up { items, .. }] = &frames[..] else {
            panic!("{frames:?}")
        };
        let items = items.clone();
        seq += 1;
        let ack = Frame::Ack { session: 7, seq, need_full: vec![] };
        edge.handle(Mono(0), Input::Frame(ack.encode()));
        assert_eq!(sent(edge), []);
        items
    };
    for phase in ["Running", "Pending"] {
        let report = Input::Reports(vec![(uid, Value::from([("phase", phase)]))]);
        assert!(matches!(next(&mut edge, report)[..], [Up::Report { .. }]));
        assert!(matches!(next(&mut edge, Input::Gone(uid))[..], [Up::Gone { .. }]));
    }
}

#[test]
fn what_fills_frames_is_not_held_up() {
    let (mut edge, uid) = edge();
    connect(&mut edge);
    let long = "x".repeat(3 * FRAME_MAX);
    edge.handle(
        Mono(0),
        Input::Reports(vec![(uid, Value::from([("message", long.as_str())]))]),
    );
    let frames = sent(&mut edge);
    assert!(frames.len() > 3, "{}", frames.len());
}

#[test]
fn an_event_is_written_with_the_report_that_follows_it() {
    let (mut edge, uid) = edge();
    let now = Mono(0);
    edge.handle(now, event("a probe failed"));
    assert_eq!(commits(&mut edge, now), []);
    edge.handle(now, Input::Reports(vec![(uid, Value::from([("phase", "Running")]))]));
    let written = commits(&mut edge, now);
    assert_eq!(written.len(), 1);
    assert_eq!((written[0].events.len(), written[0].reports.len()), (1, 1));
    assert_eq!(edge.wake_at(), None);
}

#[test]
fn an_event_waits_for_a_second_and_no_longer() {
    let (mut edge, _) = edge();
    edge.handle(Mono(0), event("first"));
    edge.handle(Mono(500), event("second"));
    assert_eq!(edge.wake_at(), Some(Mono(1000)));
    edge.tick(Mono(999));
    assert_eq!(commits(&mut edge, Mono(999)), []);
    edge.tick(Mono(1000));
    let written = commits(&mut edge, Mono(1000));
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].events.len(), 2);
    assert_eq!(edge.wake_at(), None);
}

#[test]
fn a_flood_of_events_does_not_wait() {
    let (mut edge, _) = edge();
    for number in 1..edge::EVENTS_WAITING_MAX {
        edge.handle(Mono(0), event(&number.to_string()));
        assert_eq!(commits(&mut edge, Mono(0)), []);
    }
    edge.handle(Mono(0), event("one more"));
    let written = commits(&mut edge, Mono(0));
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].events.len(), edge::EVENTS_WAITING_MAX);
}

#[test]
fn a_stop_writes_what_waits() {
    let (mut edge, _) = edge();
    edge.handle(Mono(0), event("last words"));
    edge.handle(Mono(1), Input::Flush);
    assert_eq!(commits(&mut edge, Mono(1))[0].events.len(), 1);
    assert_eq!(edge.wake_at(), None);
}

#[test]
fn an_event_that_found_no_room_is_tried_again() {
    let (mut edge, _) = edge();
    edge.handle(Mono(0), event("on a full disk"));
    edge.tick(Mono(1000));
    assert!(matches!(edge.poll_effect(), Some(Effect::Commit(_))));
    edge.committed(Mono(1000), Err(CommitError::Full), &());
    let again = edge.wake_at().unwrap();
    assert!(
        again > Mono(1000) && again <= Mono(1000) + Duration::from_secs(60),
        "{again:?}"
    );
    edge.tick(again);
    let written = commits(&mut edge, again);
    assert_eq!(written.len(), 1);
    assert!(written[0].whole);
    assert_eq!(written[0].events.len(), 1);
}
