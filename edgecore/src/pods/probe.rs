//! Probes as state machines: when the next check is due, and what its results mean.
//!
//! A startup probe holds the other two back until it succeeded once. Liveness counts as good and readiness as bad until
//! their first verdicts; without a readiness probe a container is ready when it is started.

use std::time::Duration;

use proto::time::Mono;
use proto::value::Value;

use super::spec::ContainerSpec;

/// What a check does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Exec(Vec<String>),
    Http {
        /// The pod's own address when `None`.
        host: Option<String>,
        port: u16,
        path: String,
        headers: Vec<(String, String)>,
    },
    Tcp {
        host: Option<String>,
        port: u16,
    },
}

/// A probe as the manifest has it, with Kubernetes' defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    pub action: Action,
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
    /// How long a stop because of this probe may take, when it differs from the pod's.
    pub grace: Option<Duration>,
}

impl ProbeSpec {
    /// Reads a probe; `container` is where a named port is looked up. `None` when it says no action.
    pub fn parse(probe: &Value, container: &Value) -> Option<Self> {
        let number = |field: &str, default: u32| {
            let given = probe.int_at(&[field]).and_then(|number| u32::try_from(number).ok());
            given.filter(|number| *number > 0).unwrap_or(default)
        };
        let seconds = |field, default| Duration::from_secs(u64::from(number(field, default)));
        let text = |path: &[&str]| probe.text_at(path).filter(|text| !text.is_empty()).map(str::to_owned);
        let action = if probe.get("exec").is_some() {
            let command = probe.list_at(&["exec", "command"]).iter();
            Action::Exec(command.filter_map(|part| part.as_text().map(str::to_owned)).collect())
        } else if let Some(http) = probe.get("httpGet") {
            Action::Http {
                host: text(&["httpGet", "host"]),
                port: port(http.get("port")?, container)?,
                path: text(&["httpGet", "path"]).unwrap_or_else(|| "/".to_owned()),
                headers: http.list_at(&["httpHeaders"]).iter().filter_map(header).collect(),
            }
        } else {
            let tcp = probe.get("tcpSocket")?;
            Action::Tcp {
                host: text(&["tcpSocket", "host"]),
                port: port(tcp.get("port")?, container)?,
            }
        };
        let grace = probe.int_at(&["terminationGracePeriodSeconds"]);
        Some(Self {
            action,
            initial_delay: seconds("initialDelaySeconds", 0),
            period: seconds("periodSeconds", 10),
            timeout: seconds("timeoutSeconds", 1),
            success_threshold: number("successThreshold", 1),
            failure_threshold: number("failureThreshold", 3),
            grace: grace
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(Duration::from_secs),
        })
    }
}

fn header(header: &Value) -> Option<(String, String)> {
    let text = |field: &str| header.text_at(&[field]).map(str::to_owned);
    Some((text("name")?, text("value").unwrap_or_default()))
}

/// A port by number, or by its name among the container's ports.
pub(super) fn port(port: &Value, container: &Value) -> Option<u16> {
    let number = match port {
        Value::Text(name) => {
            let mut ports = container.list_at(&["ports"]).iter();
            let named = ports.find(|port| port.text_at(&["name"]) == Some(name));
            match named {
                Some(named) => named.int_at(&["containerPort"])?,
                None => name.parse().ok()?,
            }
        }
        other => other.as_i64()?,
    };
    u16::try_from(number).ok().filter(|number| *number > 0)
}

/// Which of a container's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    /// As events spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// What the probes of one container say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub attempt: u32,
    pub started: bool,
    pub ready: bool,
    /// The probe that gave the container up, and the grace it asks for.
    pub dead: Option<(ProbeKind, Option<Duration>)>,
}

/// The probes of one running container.
#[derive(Debug)]
pub struct Prober {
    container_id: String,
    health: Health,
    startup: Option<Track>,
    liveness: Option<Track>,
    readiness: Option<Track>,
}

#[derive(Debug)]
struct Track {
    spec: ProbeSpec,
    next: Mono,
    running: bool,
    successes: u32,
    failures: u32,
}

impl Track {
    fn new(spec: &ProbeSpec, now: Mono) -> Self {
        Self {
            spec: spec.clone(),
            next: now + spec.initial_delay,
            running: false,
            successes: 0,
            failures: 0,
        }
    }

    /// Counts one result, if it is one; says when a threshold is reached.
    fn count(&mut self, now: Mono, success: Option<bool>) -> Option<bool> {
        self.running = false;
        self.next = now + self.spec.period;
        if success? {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            (self.successes >= self.spec.success_threshold).then_some(true)
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            (self.failures >= self.spec.failure_threshold).then_some(false)
        }
    }
}

impl Prober {
    /// Starts with a container's start, or with its adoption: then `known` is what was last known of it.
    pub fn new(spec: &ContainerSpec, container_id: &str, attempt: u32, known: Option<(bool, bool)>, now: Mono) -> Self {
        let (started, ready) = known.unwrap_or((false, false));
        let track = |probe: &Option<ProbeSpec>| probe.as_ref().map(|probe| Track::new(probe, now));
        let mut prober = Self {
            container_id: container_id.to_owned(),
            health: Health { attempt, started, ready, dead: None },
            startup: track(&spec.startup),
            liveness: track(&spec.liveness),
            readiness: track(&spec.readiness),
        };
        if started {
            prober.startup = None;
        } else if prober.startup.is_none() {
            prober.start();
        }
        prober
    }

    /// The runtime's name of the container.
    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The checks to run now. Each must be answered by [`Prober::result`].
    pub fn due(&mut self, now: Mono) -> Vec<(ProbeKind, ProbeSpec)> {
        let mut due = Vec::new();
        for (kind, track) in self.active() {
            if !track.running && track.next <= now {
                track.running = true;
                due.push((kind, track.spec.clone()));
            }
        }
        due
    }

    /// When the next check is due.
    pub fn wake_at(&mut self) -> Option<Mono> {
        self.active()
            .filter(|(_, track)| !track.running)
            .map(|(_, track)| track.next)
            .min()
    }

    /// Takes the result of a check; `None` where it could not be carried out.
    pub fn result(&mut self, now: Mono, kind: ProbeKind, success: Option<bool>) {
        let track = match kind {
            ProbeKind::Startup => &mut self.startup,
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
        };
        let Some(track) = track else { return };
        let grace = track.spec.grace;
        match (kind, track.count(now, success)) {
            (_, None) | (ProbeKind::Liveness, Some(true)) => {}
            (ProbeKind::Startup, Some(true)) => self.start(),
            (ProbeKind::Startup | ProbeKind::Liveness, Some(false)) => self.health.dead = Some((kind, grace)),
            (ProbeKind::Readiness, Some(ready)) => self.health.ready = ready,
        }
    }

    fn start(&mut self) {
        self.startup = None;
        self.health.started = true;
        self.health.ready = self.readiness.is_none();
    }

    fn active(&mut self) -> impl Iterator<Item = (ProbeKind, &mut Track)> {
        let dead = self.health.dead.is_some();
        let waiting = self.startup.is_some();
        let startup = self.startup.as_mut().map(|track| (ProbeKind::Startup, track));
        let liveness = self.liveness.as_mut().map(|track| (ProbeKind::Liveness, track));
        let readiness = self.readiness.as_mut().map(|track| (ProbeKind::Readiness, track));
        [startup, liveness, readiness]
            .into_iter()
            .flatten()
            .filter(move |(kind, _)| !dead && (!waiting || *kind == ProbeKind::Startup))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::object::{Key, Revision, Uid};

    use super::super::desk::Desired;
    use super::super::spec::Pod;
    use super::*;

    fn container(probes: &str) -> ContainerSpec {
        let json = format!(r#"{{"spec":{{"containers":[{{"name":"a","image":"b:1",{probes}}}]}}}}"#);
        let value = proto::value::json::parse(json.as_bytes()).unwrap();
        let key = Key::new("Pod", "n", "p");
        let desired = Arc::new(Desired { key, uid: Uid([0; 16]), revision: Revision(1), value });
        Pod::parse(&desired).containers.remove(0)
    }

    /// Runs the machine in virtual seconds; `answer` says what a check finds. Returns what changed and when.
    fn run(
        prober: &mut Prober,
        from: u64,
        to: u64,
        answer: impl Fn(ProbeKind, u64) -> bool,
    ) -> Vec<(u64, bool, bool, bool)> {
        let mut seen = Vec::new();
        let mut last = (false, false, false);
        for second in from..=to {
            let now = Mono(second * 1000);
            for (kind, _) in prober.due(now) {
                prober.result(now, kind, Some(answer(kind, second)));
            }
            let health = prober.health();
            let state = (health.started, health.ready, health.dead.is_some());
            if state != last {
                last = state;
                seen.push((second, state.0, state.1, state.2));
            }
        }
        seen
    }

    #[test]
    fn no_probe_means_ready_at_once() {
        let mut prober = Prober::new(&container(r#""tty":false"#), "x", 0, None, Mono(0));
        assert_eq!(run(&mut prober, 0, 5, |_, _| false), [(0, true, true, false)]);
        assert_eq!(prober.wake_at(), None);
    }

    #[test]
    fn readiness_follows_its_thresholds() {
        let spec = container(
            r#""readinessProbe":{"tcpSocket":{"port":80},"initialDelaySeconds":2,"periodSeconds":5,
               "successThreshold":2,"failureThreshold":3}"#,
        );
        let mut prober = Prober::new(&spec, "x", 0, None, Mono(0));
        // Checks at 2, 7, 12 …: good from 7 to 20, bad after.
        let seen = run(&mut prober, 0, 60, |_, second| (7..=20).contains(&second));
        assert_eq!(
            seen,
            [
                (0, true, false, false),
                (12, true, true, false),
                (32, true, false, false)
            ]
        );
    }

    #[test]
    fn startup_holds_the_others_back() {
        let spec = container(
            r#""startupProbe":{"exec":{"command":["x"]},"periodSeconds":1,"failureThreshold":10},
               "livenessProbe":{"exec":{"command":["y"]},"periodSeconds":1,"failureThreshold":2}"#,
        );
        let mut prober = Prober::new(&spec, "x", 0, None, Mono(0));
        let answer = |kind, second| kind == ProbeKind::Startup && second >= 5;
        assert_eq!(
            run(&mut prober, 0, 20, answer),
            [(5, true, true, false), (7, true, true, true)]
        );
        assert_eq!(prober.health().dead, Some((ProbeKind::Liveness, None)));
        assert_eq!(prober.wake_at(), None);
        let mut prober = Prober::new(&spec, "x", 0, None, Mono(0));
        assert_eq!(run(&mut prober, 0, 20, |_, _| false), [(9, false, false, true)]);
    }

    #[test]
    fn an_adopted_container_keeps_its_word() {
        let spec = container(r#""readinessProbe":{"tcpSocket":{"port":80},"periodSeconds":1,"failureThreshold":3}"#);
        let mut prober = Prober::new(&spec, "x", 4, Some((true, true)), Mono(0));
        assert!(prober.health().ready);
        assert_eq!(
            run(&mut prober, 0, 9, |_, _| false),
            [(0, true, true, false), (2, true, false, false)]
        );
    }

    #[test]
    fn a_running_check_is_not_doubled() {
        let spec = container(r#""livenessProbe":{"tcpSocket":{"port":80},"periodSeconds":1}"#);
        let mut prober = Prober::new(&spec, "x", 0, None, Mono(0));
        assert_eq!(prober.due(Mono(0)).len(), 1);
        assert_eq!(prober.due(Mono(5_000)).len(), 0);
        assert_eq!(prober.wake_at(), None);
        prober.result(Mono(6_000), ProbeKind::Liveness, Some(true));
        assert_eq!(prober.wake_at(), Some(Mono(7_000)));
    }

    #[test]
    fn what_was_not_found_out_counts_for_nothing() {
        let spec = container(r#""livenessProbe":{"tcpSocket":{"port":80},"periodSeconds":1,"failureThreshold":2}"#);
        let mut prober = Prober::new(&spec, "x", 0, None, Mono(0));
        let mut now = Mono(0);
        let mut answer = |found: Option<bool>| {
            assert_eq!(prober.due(now).len(), 1);
            prober.result(now, ProbeKind::Liveness, found);
            now = now + Duration::from_secs(1);
            prober.health().dead.is_some()
        };
        for found in [Some(false), None, None, None] {
            assert!(!answer(found), "one failure, and nothing known since");
        }
        assert!(answer(Some(false)), "the second one");
    }

    #[test]
    fn ports_by_number_and_name() {
        let container = proto::value::json::parse(br#"{"ports":[{"name":"web","containerPort":8080}]}"#).unwrap();
        assert_eq!(port(&Value::from(80_i64), &container), Some(80));
        assert_eq!(port(&"web".into(), &container), Some(8080));
        assert_eq!(port(&"81".into(), &container), Some(81));
        assert_eq!(port(&"db".into(), &container), None);
        assert_eq!(port(&Value::from(65_536_i64), &container), None);
        assert_eq!(port(&Value::from(0_i64), &container), None);
    }
}
