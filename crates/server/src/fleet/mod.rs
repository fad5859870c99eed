//! Groups: streams with the same head and settings that teach each other the classes.
//!
//! One task drives all groups of the server. Every few seconds it has every member cut what it learnt (`owner/group.rs`), and
//! hands it to the others: within this server (`local.rs`), or over a broker (`nats.rs`, cargo feature `nats`). Members log what
//! they are handed before it counts. Requests never wait for any of this but for the milliseconds that a cut or a delta takes
//! their owner.

mod local;
#[cfg(feature = "nats")]
mod nats;
mod record;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use ultta::Delta;

use crate::clock::Clock;
use crate::http::App;
use crate::owner::Standing;
use crate::problem::Problem;
use crate::settings::ShareSettings;
use crate::stream::Stream;
pub use record::{Changed, GroupRecord};

/// How often the task looks whether something is due.
const TICK: Duration = Duration::from_millis(200);

/// After this many intervals the few samples that came in are given, too.
const PATIENCE: u32 = 5;

/// Refusals that are told, at most.
const TOLD: usize = 16;

/// What is asked of the task.
pub enum Ask {
    /// Take out what a member gave, everywhere.
    Drop { group: String, member: String, reply: oneshot::Sender<Result<Vec<String>, Problem>> },
    /// Have the members of this server put what they gave where newcomers find it.
    Snapshot { group: String, reply: oneshot::Sender<Result<Vec<String>, Problem>> },
}

/// The groups of a server, as requests see them.
#[derive(Default)]
pub struct Fleet {
    views: Mutex<BTreeMap<String, GroupView>>,
    asks: Mutex<Option<mpsc::Sender<Ask>>>,
}

/// A group, as this server knows it.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct GroupView {
    /// Its name.
    pub group: String,
    /// `server`: within this server alone; `nats`: over a broker.
    pub over: String,
    /// Whether the broker can be reached; absent without one.
    pub connected: Option<bool>,
    /// Why not, if it cannot.
    pub trouble: Option<String>,
    /// Members that were heard of, those of this server among them.
    pub members: Vec<MemberView>,
    /// Where this server's own members stand.
    pub own: Vec<OwnView>,
    /// What was refused last, and why.
    pub refused: Vec<Refused>,
    /// Deltas that this server's members gave and took, and their bytes, since it started.
    pub given: Traffic,
    /// What they took.
    pub taken: Traffic,
}

/// Deltas that went one way.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Traffic {
    /// Their number.
    pub deltas: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A member of a group.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct MemberView {
    /// Its name: the stream's; over a broker the server's name and the stream's.
    pub member: String,
    /// Whether it is a stream of this server.
    pub own: bool,
    /// How often its contribution was taken out.
    pub epoch: u64,
    /// The number of its last delta that is known here.
    pub number: u64,
    /// Samples behind all that it ever gave.
    pub samples: u64,
    /// The group's clock when it gave last.
    pub stamp: f64,
    /// When it was last heard of, in seconds since 1970, since this server started.
    pub last_seen: Option<f64>,
}

/// A stream of this server in its group.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct OwnView {
    /// The stream.
    pub stream: String,
    /// Its name in the group.
    pub member: String,
    /// Samples that it has learnt from and not given yet.
    pub waiting: u64,
    /// Samples of all members.
    pub clock: f64,
    /// Samples behind the others' evidence, faded to now.
    pub others: f64,
    /// How many of them count here: fewer where the others see the classes differently.
    pub counted: f64,
    /// Whether the others' evidence is set aside, because it misled.
    pub set_aside: bool,
    /// Messages of the broker that this server has not read yet.
    pub behind: u64,
}

/// A delta that was refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Refused {
    /// Whose.
    pub member: String,
    /// Why.
    pub reason: String,
    /// How often.
    pub times: u64,
}

impl Fleet {
    pub fn views(&self) -> Vec<GroupView> {
        self.lock().values().cloned().collect()
    }

    fn view(&self, group: &str) -> Option<GroupView> {
        self.lock().get(group).cloned()
    }

    /// A group as it is now: a view is otherwise as old as the task's last round, which may wait for a broker.
    pub async fn inspect(app: &App, group: &str) -> Option<GroupView> {
        let mut view = app.fleet.view(group)?;
        let members = groups(app, &app.config.share).remove(group)?;
        let last_seen = view.members.iter().filter_map(|m| Some((m.member.clone(), m.last_seen?))).collect();
        let behind = view.own.iter().map(|own| own.behind).max().unwrap_or(0);
        (view.members, view.own) = look(&members, behind, &last_seen).await;
        Some(view)
    }

    /// What keeps groups from sharing, by group.
    pub fn troubles(&self) -> Vec<(String, String)> {
        let trouble = |view: &GroupView| Some((view.group.clone(), view.trouble.clone()?));
        self.lock().values().filter_map(trouble).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, GroupView>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the task, and waits for what it says.
    pub async fn ask(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<Vec<String>, Problem>>) -> Ask,
    ) -> Result<Vec<String>, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::unavailable("the server is stopping");
        let asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(gone)?;
        asks.send(ask(reply)).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Starts the task that drives the groups. It ends when the server stops.
    pub fn start(app: &Arc<App>, stopped: watch::Receiver<bool>) -> tokio::task::JoinHandle<()> {
        let (asks, asked) = mpsc::channel(16);
        *app.fleet.asks.lock().unwrap_or_else(PoisonError::into_inner) = Some(asks);
        tokio::spawn(drive(app.clone(), asked, stopped))
    }
}

/// A stream in its group.
#[derive(Clone)]
pub(crate) struct Member {
    pub stream: Arc<Stream>,
    /// Its name in the group, but for what a loss may have added.
    pub name: String,
}

impl Member {
    async fn standing(&self) -> Result<Option<Standing>, Problem> {
        self.stream.control(|owner| Ok(owner.standing())).await
    }

    /// What it has learnt, if it is time.
    async fn cut(&self, least: u64) -> Result<Option<Delta>, Problem> {
        self.stream.control(move |owner| owner.cut(least)).await
    }
}

/// What both kinds of exchange keep of a group.
pub(crate) struct Common {
    pub settings: ShareSettings,
    pub clock: Clock,
    pub view: GroupView,
    pub last_seen: BTreeMap<String, f64>,
    cut_at: BTreeMap<String, Instant>,
}

impl Common {
    fn new(group: &str, over: &str, settings: &ShareSettings, clock: Clock) -> Self {
        let view = GroupView { group: group.into(), over: over.into(), ..GroupView::default() };
        let (last_seen, cut_at) = Default::default();
        Self { settings: settings.clone(), clock, view, last_seen, cut_at }
    }

    /// How many samples a member must have waiting to be asked for them now; `None` if it is not its time.
    pub fn due(&mut self, stream: &str) -> Option<u64> {
        let interval = Duration::from_secs_f64(self.settings.seconds);
        let since = *self.cut_at.entry(stream.into()).or_insert_with(Instant::now);
        let passed = since.elapsed();
        let late = passed >= interval * PATIENCE;
        (passed >= interval).then_some(if late { 1 } else { self.settings.samples })
    }

    pub fn note_cut(&mut self, stream: &str) {
        self.cut_at.insert(stream.into(), Instant::now());
    }

    pub fn given(&mut self, delta: &Delta, bytes: usize) {
        self.view.given.deltas += 1;
        self.view.given.bytes += bytes as u64;
        self.last_seen.insert(delta.member().into(), self.clock.now());
    }

    #[cfg(feature = "nats")]
    pub fn taken(&mut self, delta: &Delta, bytes: usize) {
        self.view.taken.deltas += 1;
        self.view.taken.bytes += bytes as u64;
        self.last_seen.insert(delta.member().into(), self.clock.now());
    }

    pub fn refuse(&mut self, member: &str, reason: String) {
        let told = &mut self.view.refused;
        match told.iter_mut().find(|r| r.member == member && r.reason == reason) {
            Some(known) => known.times += 1,
            None => {
                tracing::warn!(group = self.view.group, member, reason, "refused");
                told.push(Refused { member: member.into(), reason, times: 1 });
                if told.len() > TOLD {
                    told.remove(0);
                }
            }
        }
    }

    /// Brings the view up to date.
    async fn look(&mut self, members: &[Member], behind: u64) {
        (self.view.members, self.view.own) = look(members, behind, &self.last_seen).await;
    }
}

/// Where the members stand, as those of this server know it.
async fn look(
    members: &[Member],
    behind: u64,
    last_seen: &BTreeMap<String, f64>,
) -> (Vec<MemberView>, Vec<OwnView>) {
    let (mut all, mut own) = (BTreeMap::new(), Vec::new());
    for member in members {
        let Ok(Some(Standing { membership, .. })) = member.standing().await else { continue };
        let view = |name: &str, heard: ultta::Heard, own: bool| MemberView {
            member: name.into(),
            own,
            epoch: heard.epoch,
            number: heard.number,
            samples: heard.samples,
            stamp: heard.stamp,
            last_seen: last_seen.get(name).copied(),
        };
        for (name, heard) in &membership.heard {
            let known: &mut MemberView = all.entry(name.clone()).or_insert_with(|| view(name, *heard, false));
            if !known.own && (heard.epoch, heard.number) > (known.epoch, known.number) {
                *known = view(name, *heard, false);
            }
        }
        all.insert(membership.member.clone(), view(&membership.member, membership.given, true));
        own.push(OwnView {
            stream: member.stream.name.clone(),
            member: membership.member,
            waiting: membership.waiting,
            clock: membership.clock,
            others: membership.others,
            counted: membership.counted,
            set_aside: membership.set_aside,
            behind,
        });
    }
    (all.into_values().collect(), own)
}

/// How the members of a group reach each other.
enum Exchange {
    Local(Box<local::Local>),
    #[cfg(feature = "nats")]
    Nats(Box<nats::Broker>),
}

impl Exchange {
    fn new(group: &str, settings: &ShareSettings, clock: Clock) -> Self {
        #[cfg(feature = "nats")]
        if settings.url.is_some() {
            return Self::Nats(Box::new(nats::Broker::new(Common::new(group, "nats", settings, clock))));
        }
        Self::Local(Box::new(local::Local::new(Common::new(group, "server", settings, clock))))
    }

    async fn round(&mut self, members: &[Member]) -> GroupView {
        match self {
            Self::Local(local) => local.round(members).await,
            #[cfg(feature = "nats")]
            Self::Nats(broker) => broker.round(members).await,
        }
    }

    async fn drop_member(&mut self, members: &[Member], member: &str) -> Result<Vec<String>, Problem> {
        match self {
            Self::Local(local) => local.drop_member(members, member).await,
            #[cfg(feature = "nats")]
            Self::Nats(broker) => broker.drop_member(member).await,
        }
    }

    async fn snapshot(&mut self, members: &[Member]) -> Result<Vec<String>, Problem> {
        match self {
            // Within one server every member has its own log and state.
            Self::Local(_) => Ok(members.iter().map(|member| member.name.clone()).collect()),
            #[cfg(feature = "nats")]
            Self::Nats(broker) => broker.snapshot(members).await,
        }
    }
}

/// Names in a group match as a whole, or as all streams of a server.
fn is_meant(name: &str, asked: &str) -> bool {
    name == asked
        || name.strip_prefix(asked).is_some_and(|rest| rest.starts_with('/') || rest.starts_with('~'))
}

async fn drive(app: Arc<App>, mut asked: mpsc::Receiver<Ask>, mut stopped: watch::Receiver<bool>) {
    let settings = app.config.share.clone();
    let mut exchanges: BTreeMap<String, Exchange> = BTreeMap::new();
    let mut tick = tokio::time::interval(TICK.min(Duration::from_secs_f64(settings.seconds)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let ask = tokio::select! {
            _ = tick.tick() => None,
            ask = asked.recv() => ask,
            _ = stopped.changed() => return,
        };
        let groups = groups(&app, &settings);
        exchanges.retain(|group, _| groups.contains_key(group));
        app.fleet.lock().retain(|group, _| groups.contains_key(group));
        let none =
            |group: &str| Problem::not_found(format!("this server has no stream in a group {group:?}"));
        match ask {
            None => {
                for (group, members) in &groups {
                    let exchange = exchanges
                        .entry(group.clone())
                        .or_insert_with(|| Exchange::new(group, &settings, app.streams.clock));
                    let view = tokio::select! {
                        view = exchange.round(members) => view,
                        _ = stopped.changed() => return,
                    };
                    app.fleet.lock().insert(group.clone(), view);
                }
            }
            Some(Ask::Drop { group, member, reply }) => {
                let done = match (exchanges.get_mut(&group), groups.get(&group)) {
                    (Some(exchange), Some(members)) => exchange.drop_member(members, &member).await,
                    _ => Err(none(&group)),
                };
                let _ = reply.send(done);
            }
            Some(Ask::Snapshot { group, reply }) => {
                let done = match (exchanges.get_mut(&group), groups.get(&group)) {
                    (Some(exchange), Some(members)) => exchange.snapshot(members).await,
                    _ => Err(none(&group)),
                };
                let _ = reply.send(done);
            }
        }
    }
}

/// The members of this server, by group.
fn groups(app: &App, settings: &ShareSettings) -> BTreeMap<String, Vec<Member>> {
    let mut groups: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for stream in app.streams.all() {
        let Some(group) = stream.meta.group.clone() else { continue };
        let name = match &settings.member {
            Some(server) if settings.url.is_some() => format!("{server}/{}", stream.name),
            _ => stream.name.clone(),
        };
        groups.entry(group).or_default().push(Member { stream, name });
    }
    groups
}
