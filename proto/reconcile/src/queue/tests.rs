use proptest::prelude::*;

use super::*;

const FAST: Lane = Lane::Fast;
const SLOW: Lane = Lane::Slow;

fn queue(budget: usize) -> Queue<u8> {
    let backoff = Backoff {
        first: Duration::from_millis(100),
        cap: Duration::from_millis(1000),
    };
    Queue::new(Limits { budget, backoff }, 1)
}

#[test]
fn duplicates_merge_and_the_earliest_deadline_wins() {
    let mut queue = queue(8);
    queue.add(1, FAST, Mono(500));
    queue.add(1, FAST, Mono(200));
    queue.add(1, FAST, Mono(900));
    queue.add(1, SLOW, Mono(300));
    assert_eq!((queue.waiting(), queue.wake_at()), (1, Some(Mono(200))));
    assert_eq!(queue.next(Mono(199)), None);
    assert_eq!(queue.next(Mono(200)), Some(1));
    queue.done(1, Outcome::Done, Mono(201));
    assert_eq!(
        (queue.next(Mono(10_000)), queue.wake_at(), queue.waiting()),
        (None, None, 0)
    );
}

#[test]
fn a_change_during_a_run_reruns_once() {
    let mut queue = queue(8);
    queue.add(1, FAST, Mono(0));
    assert_eq!(queue.next(Mono(0)), Some(1));
    for _ in 0..5 {
        queue.add(1, FAST, Mono(1));
    }
    assert_eq!(queue.next(Mono(5)), None, "it still runs");
    queue.done(1, Outcome::Done, Mono(5));
    assert_eq!(queue.next(Mono(5)), Some(1));
    queue.done(1, Outcome::Done, Mono(6));
    assert_eq!(queue.next(Mono(99)), None);
}

#[test]
fn the_four_outcomes() {
    let mut queue = queue(1);
    let run = |queue: &mut Queue<u8>, now: u64, outcome| {
        assert_eq!(queue.next(Mono(now)), Some(1), "due at {now}");
        queue.done(1, outcome, Mono(now));
        queue.wake_at()
    };
    queue.add(1, FAST, Mono(0));
    assert_eq!(
        run(&mut queue, 0, Outcome::Again(Duration::from_millis(30))),
        Some(Mono(30))
    );
    let mut now = 30;
    for full in [100, 200, 400, 800, 1000, 1000] {
        let wake = run(&mut queue, now, Outcome::Retry).unwrap().0;
        assert!((now + full / 2..=now + full).contains(&wake), "{now} + {full}: {wake}");
        now = wake;
    }
    // A success forgets the failures.
    let wake = run(&mut queue, now, Outcome::Again(Duration::ZERO)).unwrap().0;
    let wake = run(&mut queue, wake, Outcome::Retry).unwrap().0 - wake;
    assert!((50..=100).contains(&wake));
    assert_eq!(run(&mut queue, now + 100, Outcome::Done), None);
    assert!(queue.entries.is_empty(), "nothing is kept for what is done");
}

#[test]
fn terminal_waits_for_a_change_and_not_for_a_resync() {
    let mut queue = queue(1);
    queue.add(1, FAST, Mono(0));
    assert_eq!(queue.next(Mono(0)), Some(1));
    queue.add(1, SLOW, Mono(0));
    queue.done(1, Outcome::Terminal, Mono(0));
    queue.add(1, SLOW, Mono(0));
    assert_eq!(queue.next(Mono(10)), None);
    queue.add(1, FAST, Mono(10));
    assert_eq!(queue.next(Mono(10)), Some(1));
    queue.add(1, FAST, Mono(11));
    queue.done(1, Outcome::Terminal, Mono(12));
    assert_eq!(queue.next(Mono(12)), Some(1), "it changed while it ran");
    queue.done(1, Outcome::Done, Mono(12));
    queue.add(1, SLOW, Mono(13));
    assert_eq!(queue.next(Mono(13)), Some(1), "no longer terminal");
}

#[test]
fn the_slow_lane_gets_its_share_of_a_flood() {
    let mut queue = queue(1);
    let mut slow = 0;
    for key in 100..200 {
        queue.add(key, SLOW, Mono(0));
    }
    for turn in 0..80u8 {
        queue.add(turn, FAST, Mono(1));
        queue.add(turn.wrapping_add(1), FAST, Mono(1));
        let key = queue.next(Mono(1)).unwrap();
        slow += u32::from(key >= 100);
        queue.done(key, Outcome::Done, Mono(1));
    }
    assert_eq!(slow, 80 / SLOW_EVERY);
}

#[test]
fn the_budget_and_past_it() {
    let mut queue = queue(2);
    for key in 0..3 {
        queue.add(key, FAST, Mono(0));
    }
    assert_eq!((queue.next(Mono(0)), queue.next(Mono(0))), (Some(0), Some(1)));
    assert_eq!((queue.next(Mono(0)), queue.wake_at()), (None, None));
    queue.done(0, Outcome::Done, Mono(0));
    assert_eq!(queue.wake_at(), Some(Mono(0)));
    assert_eq!(queue.next(Mono(0)), Some(2));
    assert_eq!(queue.running(), 2);
    // A budget of nothing is one.
    let mut least = self::queue(0);
    least.add(7, FAST, Mono(0));
    assert_eq!(least.next(Mono(0)), Some(7));
}

#[test]
fn ending_a_run_that_is_none_changes_nothing() {
    let mut queue = queue(1);
    queue.done(1, Outcome::Retry, Mono(0));
    queue.add(1, FAST, Mono(5));
    queue.done(1, Outcome::Retry, Mono(0));
    assert_eq!((queue.running(), queue.wake_at()), (0, Some(Mono(5))));
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8, Lane, u64),
    Next,
    Done(usize, Outcome),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let lane = prop_oneof![Just(FAST), Just(SLOW)];
    let outcome = prop_oneof![
        Just(Outcome::Done),
        (0..300u64).prop_map(|wait| Outcome::Again(Duration::from_millis(wait))),
        Just(Outcome::Retry),
        Just(Outcome::Terminal),
    ];
    prop_oneof![
        4 => (0..6u8, lane, 0..200u64).prop_map(|(key, lane, wait)| Step::Add(key, lane, wait)),
        4 => Just(Step::Next),
        3 => (0..4usize, outcome).prop_map(|(which, outcome)| Step::Done(which, outcome)),
        2 => (0..150u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// All laws at once, against the plainest model of them: per key, what was asked since its last run began.
    #[test]
    fn laws(steps in proptest::collection::vec(step(), 0..200), budget in 1..4usize) {
        let mut queue = queue(budget);
        let mut now = Mono(0);
        let mut running: Vec<u8> = Vec::new();
        let mut asked: BTreeMap<u8, Mono> = BTreeMap::new();
        let mut parked: BTreeSet<u8> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Add(key, lane, wait) => {
                    let at = now + Duration::from_millis(wait);
                    queue.add(key, lane, at);
                    if lane == FAST {
                        parked.remove(&key);
                    }
                    if !parked.contains(&key) {
                        // A resync that is asked for during a run may be swallowed by its terminal end: not modelled.
                        if lane == FAST || !running.contains(&key) {
                            asked.entry(key).and_modify(|known| *known = at.min(*known)).or_insert(at);
                        }
                    }
                }
                Step::Next => match queue.next(now) {
                    Some(key) => {
                        prop_assert!(!running.contains(&key), "{key} runs twice at once");
                        prop_assert!(running.len() < budget);
                        asked.remove(&key);
                        running.push(key);
                    }
                    None => {
                        let due = asked.iter().any(|(key, at)| *at <= now && !running.contains(key));
                        prop_assert!(!due || running.len() == budget, "a due key was left while there was room");
                    }
                },
                Step::Done(which, outcome) => {
                    if running.is_empty() {
                        continue;
                    }
                    let key = running.remove(which % running.len());
                    queue.done(key, outcome, now);
                    match outcome {
                        Outcome::Again(wait) => {
                            let at = now + wait;
                            asked.entry(key).and_modify(|known| *known = at.min(*known)).or_insert(at);
                        }
                        Outcome::Retry => {
                            let at = now + Duration::from_millis(1000);
                            asked.entry(key).and_modify(|known| *known = at.min(*known)).or_insert(at);
                        }
                        Outcome::Terminal if !asked.contains_key(&key) => {
                            parked.insert(key);
                        }
                        Outcome::Terminal | Outcome::Done => {}
                    }
                }
                Step::Pass(wait) => now = now + Duration::from_millis(wait),
            }
            prop_assert_eq!(queue.running(), running.len());
            if let Some(first) = asked.iter().filter(|(key, _)| !running.contains(key)).map(|(_, at)| *at).min()
                && running.len() < budget
            {
                prop_assert!(queue.wake_at().is_some_and(|wake| wake <= first), "it would sleep too long");
            }
        }
        // In the end every key that was asked for runs, and then there is nothing left.
        for key in running.drain(..) {
            queue.done(key, Outcome::Done, now);
        }
        now = now + Duration::from_secs(3600);
        while let Some(key) = queue.next(now) {
            asked.remove(&key);
            queue.done(key, Outcome::Done, now);
        }
        prop_assert!(asked.is_empty(), "never ran: {asked:?}");
        prop_assert_eq!(queue.waiting(), 0);
    }

    /// However the fast lane is flooded, a due slow key waits for at most its place times `SLOW_EVERY` picks.
    #[test]
    fn the_slow_share(slow in 1..10u8, flood in proptest::collection::vec(0..50u8, 200)) {
        let mut queue = queue(1);
        for key in 0..slow {
            queue.add(100 + key, SLOW, Mono(0));
        }
        let mut seen = 0;
        for (turn, key) in (0u32..).zip(flood) {
            queue.add(key, FAST, Mono(0));
            let picked = queue.next(Mono(0)).unwrap();
            seen += u32::from(picked >= 100);
            prop_assert!(seen >= (turn + 1) / SLOW_EVERY || seen == u32::from(slow));
            queue.done(picked, Outcome::Done, Mono(0));
        }
        prop_assert_eq!(seen, u32::from(slow));
    }
}
