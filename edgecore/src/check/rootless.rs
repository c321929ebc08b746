//! What an edge core that is not root has to go on with.

use std::collections::BTreeSet;

use super::Line;
use crate::rootless::probe::Found;

/// Users in an image have numbers up to this one.
const IDS: u64 = 65_536;

/// The controllers that limits of pods take.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn lines(found: &Found) -> Vec<Line> {
    const WHAT: &str = "root";
    let Some(refused) = &found.refused else {
        return vec![
            Line::good(
                WHAT,
                "not root: it runs in a user namespace of its own, as root does in one",
            ),
            ids(found),
            limits(found.delegated.as_ref()),
        ];
    };
    vec![Line::missing(WHAT, refused)]
}

fn ids(found: &Found) -> Line {
    const WHAT: &str = "user ids";
    let Found { users, groups, notes, .. } = found;
    if !notes.is_empty() {
        return Line::note(WHAT, notes.join("; "));
    }
    let detail = format!("{users} users and {groups} groups in containers");
    if *users < IDS || *groups < IDS {
        return Line::note(
            WHAT,
            format!(
                "{detail}: images may have more, up to {IDS}; longer ranges in /etc/subuid and /etc/subgid bring them"
            ),
        );
    }
    Line::good(WHAT, detail)
}

fn limits(delegated: Option<&(String, BTreeSet<String>)>) -> Line {
    const WHAT: &str = "cgroups";
    const FIX: &str = "run it as a systemd user unit (systemctl --user enable --now edgecore, loginctl enable-linger) on a \
                       machine with cgroups of version 2";
    let Some((path, controllers)) = delegated else {
        return Line::note(
            WHAT,
            format!("none is delegated to this user, so pods are not held to their limits: {FIX}"),
        );
    };
    let missing: Vec<_> = CONTROLLERS
        .into_iter()
        .filter(|name| !controllers.contains(*name))
        .collect();
    if missing.is_empty() {
        Line::good(
            WHAT,
            format!("pods' are made below {path}, with {}", CONTROLLERS.join(", ")),
        )
    } else {
        let missing = missing.join(", ");
        Line::note(
            WHAT,
            format!(
                "{missing} is not handed on to {path}, so pods are not held to such limits: Delegate=cpu memory pids for \
                 user@.service (systemctl edit user@.service), and log in again"
            ),
        )
    }
}

pub(super) fn network() -> Line {
    Line::note(
        "pod network",
        "none without root: pods that are not on the host's network have loopback only",
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn each_shortcoming_has_its_fix() {
        let all = Found {
            users: IDS + 1,
            groups: IDS + 1,
            delegated: Some(("/u".into(), CONTROLLERS.map(str::to_owned).into())),
            ..Found::default()
        };
        let check = |change: &dyn Fn(&mut Found), what: &str, state: State, part: &str| {
            let mut found = all.clone();
            change(&mut found);
            let lines = lines(&found);
            let line = lines.iter().find(|line| line.what == what).unwrap();
            assert!(line.state == state && line.detail.contains(part), "{part}: {line:?}");
        };
        check(&|_| {}, "root", State::Good, "not root");
        check(&|_| {}, "user ids", State::Good, "65537 users");
        check(&|_| {}, "cgroups", State::Good, "/u, with cpu, memory, pids");
        check(
            &|found| found.refused = Some("no: x".into()),
            "root",
            State::Missing,
            "no: x",
        );
        check(
            &|found| found.notes = vec!["apt-get install uidmap".into()],
            "user ids",
            State::Note,
            "apt-get install uidmap",
        );
        check(&|found| found.users = IDS - 1, "user ids", State::Note, "longer ranges");
        check(
            &|found| found.delegated = None,
            "cgroups",
            State::Note,
            "systemctl --user",
        );
        let fewer = |found: &mut Found| found.delegated = Some(("/u".into(), ["pids".to_owned()].into()));
        check(&fewer, "cgroups", State::Note, "cpu, memory is not handed on to /u");
    }
}
