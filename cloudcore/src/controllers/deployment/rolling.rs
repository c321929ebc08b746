//! How many pods each ReplicaSet may have: arithmetic only.
//!
//! A place held by a pod on a silent node is neither given to another pod nor waited for. So the budget is spent on the
//! rest: with `held` places out of sight, the floor of available pods is lowered by as many, and the new ReplicaSet
//! gets no place that an old pod still holds.

use proto::value::Value;

use super::{Counts, Set, replicas, revision};

/// What a Deployment allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) replicas: usize,
    pub(super) surge: usize,
    pub(super) unavailable: usize,
    pub(super) recreate: bool,
}

impl Budget {
    pub(super) fn of(deployment: &Value) -> Self {
        let replicas = replicas(deployment);
        let recreate = deployment.text_at(&["spec", "strategy", "type"]) == Some("Recreate");
        let field = |name: &str, up: bool| {
            let value = deployment.at(&["spec", "strategy", "rollingUpdate", name]);
            value.map_or_else(
                || share(&Value::from("25%"), replicas, up),
                |value| share(value, replicas, up),
            )
        };
        let (surge, mut unavailable) = (field("maxSurge", true), field("maxUnavailable", false).min(replicas));
        // Both can round to nothing; then nothing could ever move.
        if surge == 0 && unavailable == 0 {
            unavailable = 1;
        }
        if recreate {
            return Self { replicas, surge: 0, unavailable: replicas, recreate };
        }
        Self { replicas, surge, unavailable, recreate }
    }

    /// How many must stay available, whatever we do.
    pub(super) fn floor(&self) -> usize {
        self.replicas.saturating_sub(self.unavailable)
    }
}

/// A number, or a percentage of `of`, rounded as asked.
pub(crate) fn share(value: &Value, of: usize, up: bool) -> usize {
    if let Some(number) = value.as_i64() {
        return usize::try_from(number).unwrap_or(0);
    }
    let percent = value
        .as_text()
        .and_then(|text| text.strip_suffix('%')?.parse::<u32>().ok());
    let product = of.saturating_mul(usize::try_from(percent.unwrap_or(0)).unwrap_or(0));
    if up { product.div_ceil(100) } else { product / 100 }
}

/// The sizes that the ReplicaSets should have next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) current: usize,
    pub(super) old: Vec<usize>,
}

/// How large the new ReplicaSet begins.
pub(super) fn first(budget: &Budget, old: &[Set]) -> usize {
    let old: Vec<_> = old.iter().map(|set| set.counts).collect();
    grow(budget, &Counts::default(), &old)
}

/// One step of a rollout, from any state in between.
pub(super) fn step(budget: &Budget, current: &Counts, old: &[Counts]) -> Step {
    Step {
        current: grow(budget, current, old),
        old: if budget.recreate {
            vec![0; old.len()]
        } else {
            shrink(budget, current, old)
        },
    }
}

/// The size of the new ReplicaSet: up within the surge, never into a place that an old pod still holds.
fn grow(budget: &Budget, current: &Counts, old: &[Counts]) -> usize {
    if current.wanted > budget.replicas {
        return budget.replicas;
    }
    let places = |counts: &Counts| counts.places() + if budget.recreate { counts.ending } else { 0 };
    let taken: usize = old.iter().map(places).sum();
    if budget.recreate {
        // Old and new never run at once.
        return if taken == 0 { budget.replicas } else { current.wanted };
    }
    let held: usize = old.iter().map(|counts| counts.silent).sum();
    let target = budget.replicas.saturating_sub(held);
    let room = (budget.replicas + budget.surge).saturating_sub(taken + current.places());
    // It never shrinks here because an old pod fell silent: that would undo what is done.
    target.min(current.wanted + room).max(current.wanted)
}

/// The sizes of the old ReplicaSets: broken pods first, then as many as the available ones allow.
fn shrink(budget: &Budget, current: &Counts, old: &[Counts]) -> Vec<usize> {
    let mut sizes: Vec<_> = old.iter().map(|counts| counts.wanted).collect();
    let held: usize = old.iter().chain([current]).map(|counts| counts.silent).sum();
    let floor = budget.floor().saturating_sub(held);
    // A pod that its set was already told to end is no longer there to be spent.
    let in_sight = |counts: &Counts| counts.wanted.min(counts.present).saturating_sub(counts.silent);
    let total: usize = old.iter().chain([current]).map(in_sight).sum();
    // Places of the new ReplicaSet that are not available yet do not stand in for old pods.
    let pending = in_sight(current).saturating_sub(current.keeps_available());
    let mut broken_left = total.saturating_sub(floor + pending);
    for (size, counts) in sizes.iter_mut().zip(old) {
        let broken = size.saturating_sub(counts.silent + counts.available);
        let down = broken.min(broken_left);
        *size -= down;
        broken_left -= down;
    }
    let available: usize = old.iter().chain([current]).map(|counts| counts.keeps_available()).sum();
    let mut spare = available.saturating_sub(floor).min(broken_left);
    for (size, counts) in sizes.iter_mut().zip(old) {
        let down = size.saturating_sub(counts.silent).min(spare);
        *size -= down;
        spare -= down;
    }
    sizes
}

/// The sizes after `spec.replicas` was changed, in the order current, then old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rescale {
    pub(super) sizes: Vec<usize>,
    /// Whether that is all: pods that are still to end can be in the way of new ones.
    pub(super) whole: bool,
}

/// The sizes after `spec.replicas` was changed, when the annotations say that it was: all ReplicaSets with pods keep
/// their shares. `None` when nothing was changed.
pub(super) fn rescale(budget: &Budget, current: Option<&Set>, old: &[Set]) -> Option<Rescale> {
    let all: Vec<_> = current.into_iter().chain(old).collect();
    let changed = |set: &&Set| {
        let desired = set
            .object
            .annotation(revision::DESIRED)
            .and_then(|text| text.parse::<usize>().ok());
        set.counts.wanted > 0 && desired.is_some_and(|desired| desired != budget.replicas)
    };
    if !all.iter().any(changed) {
        return None;
    }
    let sizes: Vec<_> = all.iter().map(|set| set.counts.wanted).collect();
    let active = sizes.iter().filter(|size| **size > 0).count();
    let rolled =
        current.is_some_and(|set| set.counts.wanted == set.counts.available && set.counts.wanted >= desired(set));
    let targets = if active == 1 || budget.recreate || rolled {
        let main = if rolled {
            0
        } else {
            sizes.iter().position(|size| *size > 0)?
        };
        let keep = |at: usize| if at == main { budget.replicas } else { 0 };
        (0..sizes.len()).map(keep).collect()
    } else {
        let allowed = if budget.replicas == 0 {
            0
        } else {
            budget.replicas + budget.surge
        };
        proportions(&sizes, allowed)
    };
    let counts: Vec<_> = all.iter().map(|set| set.counts).collect();
    Some(within(budget, &counts, targets))
}

/// Takes growth back where pods that are there, wanted or not, already take the places.
fn within(budget: &Budget, counts: &[Counts], mut sizes: Vec<usize>) -> Rescale {
    let places: usize = sizes
        .iter()
        .zip(counts)
        .map(|(size, counts)| counts.present.max(*size))
        .sum();
    let mut excess = places.saturating_sub(budget.replicas + budget.surge);
    let mut whole = true;
    for (size, counts) in sizes.iter_mut().zip(counts) {
        let back = size.saturating_sub(counts.wanted.max(counts.present)).min(excess);
        *size -= back;
        excess -= back;
        whole &= back == 0;
    }
    Rescale { sizes, whole }
}

fn desired(set: &Set) -> usize {
    set.object
        .annotation(revision::DESIRED)
        .and_then(|text| text.parse().ok())
        .unwrap_or(set.counts.wanted)
}

/// Sizes in the same proportions with another sum; what rounding leaves goes to the largest.
fn proportions(sizes: &[usize], sum: usize) -> Vec<usize> {
    let before: usize = sizes.iter().sum();
    let mut after: Vec<_> = sizes.iter().map(|size| size * sum / before.max(1)).collect();
    let left = sum - after.iter().sum::<usize>().min(sum);
    let largest = (0..sizes.len()).max_by_key(|at| (sizes[*at], std::cmp::Reverse(*at)));
    if let Some(largest) = largest {
        after[largest] += left;
    }
    after
}

/// How many old pods wait on silent nodes.
pub(super) fn waiting(old: &[Set]) -> usize {
    old.iter().map(|set| set.counts.silent).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(wanted: usize, present: usize, silent: usize, available: usize) -> Counts {
        Counts {
            wanted,
            present,
            silent,
            ready: available,
            available,
            ending: 0,
        }
    }

    const fn budget(replicas: usize, surge: usize, unavailable: usize) -> Budget {
        Budget { replicas, surge, unavailable, recreate: false }
    }

    #[test]
    fn shares() {
        let check =
            |text: &str, of, up, expected| assert_eq!(share(&Value::from(text), of, up), expected, "{text} of {of}");
        check("25%", 3, true, 1);
        check("25%", 3, false, 0);
        check("100%", 7, true, 7);
        check("0%", 7, true, 0);
        check("x", 7, true, 0);
        assert_eq!(share(&Value::from(4), 1, true), 4);
        assert_eq!(share(&Value::from(-4), 1, true), 0);
    }

    #[test]
    fn budgets() {
        let check = |strategy: &str, replicas: i64, expected: (usize, usize)| {
            let mut deployment = Value::map();
            deployment.set(&["spec", "replicas"], replicas);
            deployment.set(
                &["spec", "strategy"],
                proto::value::json::parse(strategy.as_bytes()).unwrap(),
            );
            let budget = Budget::of(&deployment);
            assert_eq!((budget.surge, budget.unavailable), expected, "{strategy} {replicas}");
        };
        check("{}", 3, (1, 0));
        check("{}", 10, (3, 2));
        check(r#"{"rollingUpdate":{"maxSurge":0,"maxUnavailable":"10%"}}"#, 3, (0, 1));
        check(r#"{"rollingUpdate":{"maxSurge":0,"maxUnavailable":5}}"#, 3, (0, 3));
        check(r#"{"type":"Recreate"}"#, 3, (0, 3));
    }

    #[test]
    fn steps() {
        let check = |budget: Budget, current: Counts, old: &[Counts], new: usize, sizes: &[usize]| {
            let step = step(&budget, &current, old);
            assert_eq!((step.current, step.old.as_slice()), (new, sizes), "{current:?} {old:?}");
        };
        let nothing = Counts::default();
        // Surge first, old ones leave as new ones become available.
        check(budget(3, 1, 0), nothing, &[counts(3, 3, 0, 3)], 1, &[3]);
        check(budget(3, 1, 0), counts(1, 1, 0, 0), &[counts(3, 3, 0, 3)], 1, &[3]);
        check(budget(3, 1, 0), counts(1, 1, 0, 1), &[counts(3, 3, 0, 3)], 1, &[2]);
        // The set was scaled down but its pod is still there: neither a place nor an available pod more.
        check(budget(3, 1, 0), counts(1, 1, 0, 1), &[counts(2, 3, 0, 3)], 1, &[2]);
        check(budget(3, 1, 0), counts(1, 1, 0, 1), &[counts(2, 2, 0, 2)], 2, &[2]);
        check(budget(3, 1, 0), counts(3, 3, 0, 3), &[counts(1, 1, 0, 1)], 3, &[0]);
        // Without surge, old ones go first.
        check(budget(4, 0, 1), nothing, &[counts(4, 4, 0, 4)], 0, &[3]);
        check(budget(4, 0, 1), nothing, &[counts(3, 3, 0, 3)], 1, &[3]);
        // The same for one that was broken when it was decided: it is not decided twice.
        check(budget(4, 1, 1), counts(1, 1, 0, 0), &[counts(3, 4, 0, 2)], 1, &[3]);
        // Broken old pods go at once, within what the floor leaves.
        check(budget(3, 1, 0), counts(1, 1, 0, 0), &[counts(3, 3, 0, 0)], 1, &[3]);
        check(budget(3, 1, 1), counts(1, 1, 0, 0), &[counts(3, 3, 0, 1)], 1, &[2]);
        // More than wanted.
        check(budget(2, 1, 0), counts(5, 5, 0, 5), &[], 2, &[]);
    }

    #[test]
    fn a_silent_pod_holds_its_place_and_the_rollout_goes_on() {
        let check = |current: Counts, old: Counts, new: usize, size: usize| {
            let step = step(&budget(3, 1, 0), &current, &[old]);
            assert_eq!((step.current, step.old[0]), (new, size), "{current:?} {old:?}");
        };
        check(Counts::default(), counts(3, 3, 1, 2), 1, 3);
        check(counts(1, 1, 0, 1), counts(3, 3, 1, 2), 1, 2);
        check(counts(1, 1, 0, 1), counts(2, 2, 1, 1), 2, 2);
        check(counts(2, 2, 0, 2), counts(2, 2, 1, 1), 2, 1);
        // All that can be reached is new; the silent one waits, and nobody takes its place.
        check(counts(2, 2, 0, 2), counts(1, 1, 1, 0), 2, 1);
        // It is back: it is rolled like the others.
        check(counts(2, 2, 0, 2), counts(1, 1, 0, 1), 3, 1);
        check(counts(3, 3, 0, 3), counts(1, 1, 0, 1), 3, 0);
        // A silent pod of the new ReplicaSet does not stop the rest either.
        check(counts(2, 2, 1, 1), counts(2, 2, 0, 2), 2, 1);
        // All are silent: nothing moves.
        check(Counts::default(), counts(3, 3, 3, 0), 0, 3);
    }

    #[test]
    fn recreate_waits_for_the_last_old_pod() {
        let budget = Budget { recreate: true, ..budget(3, 0, 3) };
        assert_eq!(
            step(&budget, &Counts::default(), &[counts(3, 3, 0, 3)]),
            Step { current: 0, old: vec![0] }
        );
        let ending = Counts { ending: 1, ..counts(0, 0, 0, 0) };
        assert_eq!(step(&budget, &Counts::default(), &[ending]).current, 0);
        assert_eq!(
            step(&budget, &Counts::default(), &[counts(0, 1, 1, 0)]).current,
            0,
            "a silent one may still run"
        );
        assert_eq!(step(&budget, &Counts::default(), &[counts(0, 0, 0, 0)]).current, 3);
    }

    #[test]
    fn a_rescale_waits_for_the_places_of_pods_that_are_to_end() {
        let check = |counts: &[Counts], targets: &[usize], sizes: &[usize], whole| {
            let rescale = within(&budget(4, 1, 1), counts, targets.to_vec());
            assert_eq!((rescale.sizes.as_slice(), rescale.whole), (sizes, whole));
        };
        check(&[counts(2, 2, 0, 2), counts(1, 1, 0, 1)], &[4, 1], &[4, 1], true);
        check(&[counts(2, 2, 0, 2), counts(1, 2, 0, 2)], &[4, 1], &[3, 1], false);
        // What is there already is not taken back here.
        check(&[counts(7, 7, 0, 7)], &[4], &[4], true);
    }

    #[test]
    fn proportions_keep_the_sum() {
        assert_eq!(proportions(&[5, 3], 16), [10, 6]);
        assert_eq!(proportions(&[2, 3, 5], 11), [2, 3, 6]);
        assert_eq!(proportions(&[2, 2], 0), [0, 0]);
    }
}
