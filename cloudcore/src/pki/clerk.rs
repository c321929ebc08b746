//! The one task that changes anything in the PKI.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use daemon::random;
use proto::enrol::{Answer, Credentials, EnrolmentId, JoinToken, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::authority::Profile;
use super::csr::ProvenKey;
use super::enrol::{Admitted, Entry, Known, Refusal, decide, node_object};
use super::ledger::{ENROLMENTS, Ledger, LedgerError, TOKENS, Write};
use super::roll::{ENROLMENTS_MAX, Enrolment};
use super::tokens::{TOKENS_MAX, Token, TokenError, TokenSpec};
use super::{PkiError, Shared};

/// How often the server's own certificates are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Tokens that ended and are cleared away when one is made.
const CLEARED_MAX: usize = 100;

type ReplyTo<T> = oneshot::Sender<Result<T, PkiError>>;

/// What the clerk is asked to do.
pub(super) enum Order {
    CreateToken {
        spec: TokenSpec,
        reply: ReplyTo<JoinToken>,
    },
    Tokens {
        reply: ReplyTo<Vec<Token>>,
    },
    DeleteToken {
        id: String,
        reply: ReplyTo<()>,
    },
    Enrol {
        request: Box<Request>,
        key: ProvenKey,
        reply: oneshot::Sender<Result<Result<Answer, Refusal>, PkiError>>,
    },
    Renew {
        enrolment: EnrolmentId,
        key: ProvenKey,
        reply: ReplyTo<Credentials>,
    },
    Revoke {
        node: String,
        reply: ReplyTo<bool>,
    },
}

/// What changes when a node comes in: one commit, and what follows from it in memory.
struct Entrance {
    writes: Vec<Write>,
    /// The token, one use poorer.
    token: Option<Token>,
    replaced: Option<Enrolment>,
    enrolment: Enrolment,
    forgotten: Vec<EnrolmentId>,
    /// PEM.
    chain: String,
}

/// Works off the orders, one at a time.
pub struct Clerk {
    shared: Arc<Shared>,
    ledger: Arc<dyn Ledger>,
    tokens: BTreeMap<String, Token>,
    orders: mpsc::Receiver<Order>,
}

impl Clerk {
    pub(super) fn new(
        shared: Arc<Shared>,
        ledger: Arc<dyn Ledger>,
        tokens: Vec<Token>,
        orders: mpsc::Receiver<Order>,
    ) -> Self {
        Self {
            shared,
            ledger,
            tokens: tokens.into_iter().map(|token| (token.id.clone(), token)).collect(),
            orders,
        }
    }

    /// Works until it is told to stop. An order that was begun is finished: its commit is never abandoned.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = look.tick() => self.renew_servers(),
                order = self.orders.recv() => match order {
                    Some(order) => self.work(order).await,
                    None => stop.cancelled().await,
                },
            }
        }
    }

    async fn work(&mut self, order: Order) {
        // Who no longer waits for an answer gets none; what was done stays done.
        match order {
            Order::CreateToken { spec, reply } => drop(reply.send(self.create_token(spec).await)),
            Order::Tokens { reply } => drop(reply.send(Ok(self.tokens.values().cloned().collect()))),
            Order::DeleteToken { id, reply } => drop(reply.send(self.delete_token(id).await)),
            Order::Enrol { request, key, reply } => drop(reply.send(Ok(self.enrol(&request, &key).await))),
            Order::Renew { enrolment, key, reply } => drop(reply.send(self.renew(enrolment, &key).await)),
            Order::Revoke { node, reply } => drop(reply.send(self.revoke(&node).await)),
        }
    }

    fn now_ms(&self) -> i64 {
        (self.shared.clock)().ms
    }

    async fn create_token(&mut self, spec: TokenSpec) -> Result<JoinToken, PkiError> {
        let now_ms = self.now_ms();
        let ended = |token: &&Token| token.ends_ms <= now_ms;
        let ended = self.tokens.values().filter(ended).take(CLEARED_MAX);
        let ended: Vec<_> = ended.map(|token| token.id.clone()).collect();
        if self.tokens.len() - ended.len() >= TOKENS_MAX {
            return Err(PkiError::Token(TokenError::TooMany));
        }
        let ca = self.shared.authority.newest_hash();
        let (text, token) = Token::create(spec, ca, now_ms).map_err(PkiError::Token)?;
        if let Some(name) = token.name.as_ref().filter(|_| token.replace)
            && self.shared.roll.of_node(name).is_none()
            && self.ledger.node(name).is_none()
        {
            return Err(PkiError::Token(TokenError::ReplacesNobody(name.clone())));
        }
        let mut writes = vec![put_token(&token)?];
        writes.extend((ended.iter()).map(|id| Write::Delete { space: TOKENS, id: id.clone() }));
        self.ledger.commit(writes).await.map_err(PkiError::Ledger)?;
        for id in &ended {
            self.tokens.remove(id);
        }
        self.tokens.insert(token.id.clone(), token);
        Ok(text)
    }

    async fn delete_token(&mut self, id: String) -> Result<(), PkiError> {
        if !self.tokens.contains_key(&id) {
            return Err(PkiError::NoToken);
        }
        let write = Write::Delete { space: TOKENS, id: id.clone() };
        self.ledger.commit(vec![write]).await.map_err(PkiError::Ledger)?;
        self.tokens.remove(&id);
        Ok(())
    }

    async fn enrol(&mut self, request: &Request, key: &ProvenKey) -> Result<Answer, Refusal> {
        let now_ms = self.now_ms();
        let admitted = self.decide(request, key, now_ms)?;
        let unavailable = |error: PkiError| {
            let refusal = Refusal::Unavailable(error.to_string());
            tracing::error!("cannot enrol: {:#}", anyhow::Error::new(error));
            refusal
        };
        let entrance = self.prepare(&admitted, request, key, now_ms).map_err(unavailable)?;
        match self.ledger.commit(entrance.writes).await {
            Ok(()) => {}
            Err(LedgerError::NodeExists) => return Err(Refusal::NameTaken(admitted.node)),
            Err(error) => return Err(unavailable(PkiError::Ledger(error))),
        }
        if let Some(token) = entrance.token {
            self.tokens.insert(token.id.clone(), token);
        }
        let Enrolment { id, node, node_uid, .. } = entrance.enrolment.clone();
        self.shared
            .roll
            .apply(entrance.replaced.into_iter().chain([entrance.enrolment]));
        self.shared.roll.forget(&entrance.forgotten);
        tracing::info!(%node, enrolment = %id, token = %request.token_id, "node enrolled");
        Ok(Answer {
            enrolment: id,
            node,
            node_uid,
            credentials: self.shared.credentials(entrance.chain),
        })
    }

    /// All that an admitted node's entrance changes, with its certificate.
    fn prepare(
        &self,
        admitted: &Admitted,
        request: &Request,
        key: &ProvenKey,
        now_ms: i64,
    ) -> Result<Entrance, PkiError> {
        let mut writes = Vec::new();
        let node_uid = admitted.keep_node.unwrap_or_else(|| {
            let uid = random::uid();
            let value = node_object(admitted, request, uid, now_ms);
            writes.push(Write::CreateNode { name: admitted.node.clone(), value });
            uid
        });
        let (mut token, mut replaced, mut forgotten) = (None, None, Vec::new());
        let mut enrolment = match &admitted.entry {
            Entry::Again(known) => Enrolment { node_uid, ..Enrolment::clone(known) },
            Entry::New(holder) => {
                if self.shared.roll.count() >= ENROLMENTS_MAX {
                    return Err(PkiError::TooMany);
                }
                replaced = holder
                    .as_deref()
                    .map(|holder| Enrolment { revoked: true, ..holder.clone() });
                forgotten = replaced
                    .iter()
                    .flat_map(|old| self.shared.roll.to_forget(&old.node))
                    .collect();
                token = self.tokens.get(&request.token_id).cloned();
                Enrolment {
                    id: EnrolmentId(random::uid()),
                    node: admitted.node.clone(),
                    node_uid,
                    key: key.hash(),
                    token: request.token_id.clone(),
                    created_ms: now_ms,
                    serials: Vec::new(),
                    revoked: false,
                }
            }
        };
        let profile = Profile::Node(enrolment.id);
        let issued = self.shared.authority.issue(&profile, key, now_ms);
        let issued = issued.map_err(PkiError::Sign)?;
        enrolment.certified(issued.serial);
        if let Some(token) = &mut token {
            // Nobody else may have used it since it was read.
            let bytes = Some(serde_json::to_vec(token).map_err(PkiError::Record)?);
            writes.push(Write::Expect { space: TOKENS, id: token.id.clone(), bytes });
            token.uses_left = token.uses_left.saturating_sub(1);
            writes.push(put_token(token)?);
        }
        for enrolment in replaced.iter().chain([&enrolment]) {
            writes.push(put_enrolment(enrolment)?);
        }
        writes.extend(forgotten.iter().map(|id| delete_enrolment(*id)));
        Ok(Entrance {
            writes,
            token,
            replaced,
            enrolment,
            forgotten,
            chain: issued.pem,
        })
    }

    fn decide(&self, request: &Request, key: &ProvenKey, now_ms: i64) -> Result<Admitted, Refusal> {
        let roll = &self.shared.roll;
        let known = Known {
            token: self.tokens.get(&request.token_id),
            same_key: roll.by_key(key.hash()),
            holder: &|node| roll.of_node(node),
            node: &|node| self.ledger.node(node),
            now_ms,
        };
        decide(request, &known)
    }

    async fn renew(&self, id: EnrolmentId, key: &ProvenKey) -> Result<Credentials, PkiError> {
        let known = self.shared.roll.get(id).filter(|enrolment| !enrolment.revoked);
        let mut enrolment = Enrolment::clone(&*known.ok_or(PkiError::Enrolment)?);
        if enrolment.key != key.hash() {
            return Err(PkiError::OtherKey);
        }
        let issued = self.shared.authority.issue(&Profile::Node(id), key, self.now_ms());
        let issued = issued.map_err(PkiError::Sign)?;
        enrolment.certified(issued.serial);
        let write = put_enrolment(&enrolment)?;
        self.ledger.commit(vec![write]).await.map_err(PkiError::Ledger)?;
        tracing::info!(node = %enrolment.node, enrolment = %id, "certificate renewed");
        self.shared.roll.apply([enrolment]);
        Ok(self.shared.credentials(issued.pem))
    }

    async fn revoke(&self, node: &str) -> Result<bool, PkiError> {
        let Some(known) = self.shared.roll.of_node(node) else {
            return Ok(false);
        };
        let enrolment = Enrolment { revoked: true, ..Enrolment::clone(&known) };
        let forgotten = self.shared.roll.to_forget(node);
        let mut writes = vec![put_enrolment(&enrolment)?];
        writes.extend(forgotten.iter().map(|id| delete_enrolment(*id)));
        self.ledger.commit(writes).await.map_err(PkiError::Ledger)?;
        tracing::info!(node, enrolment = %enrolment.id, "enrolment revoked");
        self.shared.roll.apply([enrolment]);
        self.shared.roll.forget(&forgotten);
        Ok(true)
    }

    fn renew_servers(&self) {
        let now_ms = self.now_ms();
        let mut identities = self.shared.identities.lock().unwrap_or_else(PoisonError::into_inner);
        identities.retain(|identity| {
            let Some(identity) = identity.upgrade() else {
                return false;
            };
            match identity.renew(&self.shared.authority, now_ms) {
                Ok(true) => tracing::info!("server certificate renewed"),
                Ok(false) => {}
                Err(error) => tracing::error!("server certificate not renewed: {:#}", anyhow::Error::new(error)),
            }
            true
        });
    }
}

impl fmt::Debug for Clerk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clerk")
            .field("tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

fn put_token(token: &Token) -> Result<Write, PkiError> {
    let bytes = serde_json::to_vec(token).map_err(PkiError::Record)?;
    Ok(Write::Put { space: TOKENS, id: token.id.clone(), bytes })
}

fn put_enrolment(enrolment: &Enrolment) -> Result<Write, PkiError> {
    let bytes = serde_json::to_vec(enrolment).map_err(PkiError::Record)?;
    Ok(Write::Put { space: ENROLMENTS, id: enrolment.id.to_string(), bytes })
}

fn delete_enrolment(id: EnrolmentId) -> Write {
    Write::Delete { space: ENROLMENTS, id: id.to_string() }
}
