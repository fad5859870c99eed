//! A group over NATS JetStream. The broker keeps, orders and removes duplicates; here is only what members put into it.
//!
//! ```text
//! stream ULTTA_<group>    ultta.<group>.<member>   deltas in parts, and notices that a member was dropped
//! objects ULTTA_<group>   <member>                 the member's whole contribution: where a newcomer starts
//! ```
//!
//! A member sends one delta at a time and cuts the next one once the broker has confirmed it; while the broker is away, what
//! is learnt waits in the session. A delta that may or may not have arrived is sent again with the same message ids. Every
//! member reads the stream from the position in its own log on. Deltas are numbered, so one that comes twice is known, and one
//! that is missing (because the stream was trimmed meanwhile) is made up for by the whole contributions.

mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use ultta::Delta;

use super::{Common, GroupView, Member, is_meant};
use crate::owner::Taken;
use crate::problem::Problem;
use link::{
    DROPS, Failure, Found, Link, PARTIALS, PARTS, Partial, answered, confirmed, connect, most_bytes, subject,
    token, too_large,
};

/// Pause between two attempts to reach a broker that is away.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of a part, at most: brokers take a megabyte unless told otherwise.
const PART: usize = 512 << 10;
/// A member's whole contribution is kept anew after this many of its deltas, and its older messages are removed.
const CHECKPOINT: u64 = 64;
/// Parts of a delta whose rest does not come are forgotten after this.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Pause between two rebuilds of a member. It doubles where another one is asked for at once, because what is kept does not help: each
/// reads the whole stream, and is written to the member's log. At most so many times.
const REBUILD: Duration = Duration::from_secs(2);
const DOUBLINGS: u32 = 5;

pub struct Broker {
    common: Common,
    link: Option<Link>,
    tried: Option<Instant>,
    /// Per member: what was cut and is not confirmed.
    unconfirmed: BTreeMap<String, Delta>,
    /// Per member: what its kept contribution goes up to.
    kept: BTreeMap<String, KeptContribution>,
    /// Per member: when it was rebuilt last, and how often the pause has doubled; and members that lack something since.
    rebuilt: BTreeMap<String, (Instant, u32)>,
    lacking: BTreeSet<String>,
    known: Vec<String>,
}

/// What a kept contribution goes up to: the number of a delta, and of the broker's message.
#[derive(Clone, Copy)]
struct KeptContribution {
    number: u64,
    last: u64,
}

impl Broker {
    pub fn new(common: Common) -> Self {
        let (unconfirmed, kept, rebuilt, lacking) = Default::default();
        Self { common, link: None, tried: None, unconfirmed, kept, rebuilt, lacking, known: Vec::new() }
    }

    pub async fn round(&mut self, members: &[Member]) -> GroupView {
        let done = self.try_round(members).await;
        let view = &mut self.common.view;
        let connected = done.is_ok();
        if view.connected != Some(connected) {
            match &done {
                Ok(()) => tracing::info!(group = view.group, "the broker is there"),
                Err(reason) => tracing::warn!(
                    group = view.group,
                    reason,
                    "the broker is away; what is learnt is kept for it"
                ),
            }
        }
        view.connected = Some(connected);
        view.trouble = done.err();
        let unread = self.link.as_ref().filter(|link| !link.done);
        let behind = unread.map_or(0, |link| link.last.saturating_sub(link.read));
        self.common.look(members, behind).await;
        self.common.view.clone()
    }

    async fn try_round(&mut self, members: &[Member]) -> Result<(), Failure> {
        let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        if self.known != names {
            self.join(members).await.map_err(|problem| problem.detail)?;
            self.known = names;
            // New members start reading at their own places.
            self.link = None;
        }
        if self.link.is_none() {
            if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
                return Err(self.common.view.trouble.clone().unwrap_or_else(|| "the broker is away".into()));
            }
            self.tried = Some(Instant::now());
            let bytes =
                |member: &Member| most_bytes(member.stream.head.n_classes(), member.stream.head.dim());
            let most = members.iter().map(bytes).max().unwrap_or(0);
            let mut link = connect(&self.common.view.group, &self.common.settings, most).await?;
            self.start(&mut link, members).await?;
            self.link = Some(link);
        }
        let done = self.exchange(members).await;
        if done.is_err() {
            // The client reconnects by itself; readers are made anew.
            self.link = None;
        }
        done
    }

    async fn join(&mut self, members: &[Member]) -> Result<(), Problem> {
        for member in members {
            let name = member.name.clone();
            let last = member
                .stream
                .control(move |owner| {
                    owner.join(&name)?;
                    Ok(owner.last_cut())
                })
                .await?;
            // Whether it arrived before the server fell is not known; the broker knows it again.
            self.unconfirmed.extend(last.map(|delta| (member.name.clone(), delta)));
        }
        Ok(())
    }

    /// Where reading starts: behind what all members of this server know. Newcomers take the kept contributions first.
    async fn start(&mut self, link: &mut Link, members: &[Member]) -> Result<(), Failure> {
        let mut read = u64::MAX;
        for member in members {
            let standing = member.standing().await.map_err(|problem| problem.detail)?;
            let Some(standing) = standing else { continue };
            if standing.membership.heard.is_empty() && standing.position == 0 {
                self.rebuild(link, member).await?;
            }
            read = read.min(standing.position);
        }
        link.read = if read == u64::MAX { 0 } else { read };
        Ok(())
    }

    async fn exchange(&mut self, members: &[Member]) -> Result<(), Failure> {
        let Some(mut link) = self.link.take() else { return Err("the broker is away".into()) };
        let done = async {
            for member in members
                .iter()
                .filter(|member| self.lacking.contains(&member.name))
                .cloned()
                .collect::<Vec<_>>()
            {
                self.rebuild(&mut link, &member).await?;
            }
            // First what the others learnt: a delta is as old as what its member knew.
            self.take(&mut link, members).await?;
            self.give(&mut link, members).await?;
            if !self.common.settings.read_only {
                self.keep(&mut link, members, CHECKPOINT).await?;
            }
            Ok(())
        }
        .await;
        self.link = Some(link);
        done
    }

    /// Sends what members have cut, and cuts what is due once that is confirmed.
    async fn give(&mut self, link: &mut Link, members: &[Member]) -> Result<(), Failure> {
        if self.common.settings.read_only {
            return Ok(());
        }
        for member in members {
            if let Some(delta) = self.unconfirmed.get(&member.name).cloned() {
                self.send(link, &delta).await?;
                self.unconfirmed.remove(&member.name);
            }
            let Some(least) = self.common.due(&member.stream.name) else { continue };
            match member.cut(least).await {
                Ok(None) => {}
                Ok(Some(delta)) => {
                    self.common.note_cut(&member.stream.name);
                    self.unconfirmed.insert(member.name.clone(), delta.clone());
                    self.send(link, &delta).await?;
                    self.unconfirmed.remove(&member.name);
                }
                Err(problem) => {
                    tracing::warn!(stream = member.stream.name, error = problem.detail, "not shared")
                }
            }
        }
        Ok(())
    }

    async fn send(&mut self, link: &mut Link, delta: &Delta) -> Result<(), Failure> {
        let bytes = Bytes::from(delta.to_bytes().map_err(|e| e.to_string())?);
        let most = PART.min(link.client.server_info().max_payload.saturating_sub(4096)).max(1024);
        let parts = bytes.len().div_ceil(most);
        let subject = subject(&self.common.view.group, delta.member());
        for part in 0..parts {
            let id = format!("{}:{}:{}:{part}", delta.member(), delta.epoch(), delta.span().1);
            let payload = bytes.slice(part * most..bytes.len().min((part + 1) * most));
            let message = PublishMessage::build()
                .payload(payload)
                .message_id(id)
                .header(PARTS, format!("{part}/{parts}").as_str());
            let sequence = confirmed(link, &subject, message).await?;
            link.last = link.last.max(sequence.unwrap_or(0));
        }
        self.common.given(delta, bytes.len());
        Ok(())
    }

    /// Reads what there is, and hands it to the members of this server.
    async fn take(&mut self, link: &mut Link, members: &[Member]) -> Result<(), Failure> {
        let info = answered(link.stream.get_info()).await?;
        link.last = info.state.last_sequence;
        link.done = false;
        if link.last < link.read {
            // Another stream than the one that was read: it was made anew.
            link.read = 0;
            link.reader = None;
        }
        while link.read < link.last {
            let messages = link.next().await?;
            if messages.is_empty() {
                break;
            }
            for (sequence, message) in messages {
                link.read = link.read.max(sequence);
                self.read(link, members, sequence, &message).await?;
                if link.reader.is_none() {
                    // A member was rebuilt: what follows the contributions is read again, and these messages with it.
                    break;
                }
            }
        }
        link.done = true;
        Ok(())
    }

    async fn read(
        &mut self,
        link: &mut Link,
        members: &[Member],
        sequence: u64,
        message: &async_nats::Message,
    ) -> Result<(), Failure> {
        let header =
            |name: &'static str| message.headers.as_ref()?.get(name).map(|value| value.as_str().to_string());
        let subject = message.subject.to_string();
        if let Some(object) = header(DROPS) {
            return self.hear_drop(link, members, sequence, &subject, &object).await;
        }
        let parts = header(PARTS).and_then(|text| {
            let (part, parts) = text.split_once('/')?;
            Some((part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?))
        });
        let Some((part, parts)) = parts else { return Ok(()) };
        let now = Instant::now();
        link.partial.retain(|_, partial| partial.since.elapsed() < FORGOTTEN);
        if part == 0 {
            if link.partial.len() >= PARTIALS && !link.partial.contains_key(&subject) {
                self.common.refuse(&subject, format!("{PARTIALS} others are giving at the moment"));
                return Ok(());
            }
            let partial = Partial { first: sequence, since: now, bytes: Vec::new(), parts: 0 };
            link.partial.insert(subject.clone(), partial);
        }
        let Some(partial) = link.partial.get_mut(&subject) else { return Ok(()) };
        if partial.parts != part {
            return Ok(());
        }
        let bytes = partial.bytes.len() + message.payload.len();
        if bytes > link.most {
            link.partial.remove(&subject);
            self.common.refuse(&subject, too_large(bytes, link.most));
            return Ok(());
        }
        partial.bytes.extend_from_slice(&message.payload);
        partial.parts += 1;
        if partial.parts < parts {
            return Ok(());
        }
        let Some(whole) = link.partial.remove(&subject) else { return Ok(()) };
        // After a restart the parts of others that have not come whole yet are read again.
        let position =
            link.partial.values().map(|partial| partial.first).min().map_or(sequence, |first| first - 1);
        let delta = match Delta::from_bytes(&whole.bytes) {
            Ok(delta) => delta,
            Err(e) => {
                self.common.refuse(&subject, e.to_string());
                return Ok(());
            }
        };
        // The broker can tell who may publish on which subject; what a delta says of itself anyone can write.
        if !self.is_of(&subject, &delta) {
            self.common.refuse(&subject, in_the_name_of(&delta));
            return Ok(());
        }
        let bytes: Arc<[u8]> = whole.bytes.into();
        let mut new = false;
        for member in members {
            let (own, shared, taker) = (delta.clone(), bytes.clone(), &member.stream);
            let position = self.known_up_to(member, position);
            let taken = taker.control(move |owner| owner.take(position, &own, &shared)).await;
            match taken.map_err(|problem| problem.detail)? {
                Taken::New => new = true,
                Taken::Known => {}
                Taken::Gap => self.rebuild(link, member).await?,
                Taken::Refused(reason) => self.common.refuse(delta.member(), reason),
                Taken::Stolen => {
                    let name = member.name.clone();
                    let renamed = taker.control(move |owner| owner.rename(&name)).await;
                    renamed.map_err(|problem| problem.detail)?;
                    self.unconfirmed.remove(&member.name);
                    self.rebuild(link, member).await?;
                }
            }
        }
        if new {
            self.common.taken(&delta, bytes.len());
        }
        Ok(())
    }

    /// What a member may note that it knows up to: nothing new while something before it is lacking, so that it meets that again
    /// after a crash.
    fn known_up_to(&self, member: &Member, position: u64) -> u64 {
        if self.lacking.contains(&member.name) { 0 } else { position }
    }

    /// Whether a delta is of the member whose subject it came on.
    fn is_of(&self, on: &str, delta: &Delta) -> bool {
        subject(&self.common.view.group, delta.member()) == on
    }

    /// Gives a member the kept contributions of the others; what followed them is read again.
    async fn rebuild(&mut self, link: &mut Link, member: &Member) -> Result<(), Failure> {
        let mut doublings = 0;
        if let Some((last, doubled)) = self.rebuilt.get(&member.name) {
            let pause = REBUILD * (1 << doubled);
            if last.elapsed() < pause {
                self.lacking.insert(member.name.clone());
                return Ok(());
            }
            if last.elapsed() < 2 * pause {
                doublings = (doubled + 1).min(DOUBLINGS);
            }
        }
        self.lacking.remove(&member.name);
        self.rebuilt.insert(member.name.clone(), (Instant::now(), doublings));
        let mut contributions = Vec::new();
        let own = member.standing().await.map_err(|problem| problem.detail)?;
        let own = own.map(|standing| standing.membership.member).unwrap_or_default();
        for name in link.object_names().await? {
            let bytes = match link.object(&name).await? {
                Found::Object(bytes) => bytes,
                Found::Nothing => continue,
                Found::TooLarge(reason) => {
                    self.common.refuse(&name, reason);
                    continue;
                }
            };
            match Delta::from_bytes(&bytes) {
                Ok(delta) if token(delta.member()) != name => {
                    self.common.refuse(&name, in_the_name_of(&delta));
                }
                Ok(delta) if delta.member() != own => contributions.push(delta),
                Ok(_) => {}
                Err(e) => self.common.refuse(&name, e.to_string()),
            }
        }
        match member.stream.control(move |owner| owner.rebuild(0, contributions)).await {
            Ok(left_out) => {
                left_out.into_iter().for_each(|left| self.common.refuse(&left.member, left.reason))
            }
            Err(problem) => self.common.refuse(&member.name, problem.detail),
        }
        (link.read, link.reader) = (0, None);
        link.partial.clear();
        Ok(())
    }

    /// Keeps the whole contributions of members that gave `least` deltas since, and removes the messages that the one kept
    /// before goes up to: what is left of the stream begins with whole deltas.
    async fn keep(
        &mut self,
        link: &mut Link,
        members: &[Member],
        least: u64,
    ) -> Result<Vec<String>, Failure> {
        let mut done = Vec::new();
        for member in members.iter().filter(|member| !self.unconfirmed.contains_key(&member.name)) {
            let standing = member.standing().await.map_err(|problem| problem.detail)?;
            let number = standing.map_or(0, |standing| standing.membership.given.number);
            let known = self.kept.get(&member.name).copied();
            if number == 0 || known.is_some_and(|kept| number.saturating_sub(kept.number) < least) {
                continue;
            }
            let contribution = member.stream.control(|owner| owner.contribution()).await;
            let contribution = contribution.map_err(|problem| problem.detail)?;
            let (number, name) = (contribution.span().1, token(contribution.member()));
            // What was dropped is not put back by one who does not know it yet.
            let there = link.object(&name).await?.bytes().and_then(|bytes| Delta::from_bytes(&bytes).ok());
            if there.is_some_and(|there| there.epoch() > contribution.epoch()) {
                continue;
            }
            let subject = subject(&self.common.view.group, contribution.member());
            let last = link.last_of(&subject).await?.unwrap_or(0);
            let bytes = contribution.to_bytes().map_err(|e| e.to_string())?;
            link.put(&name, &bytes).await?;
            self.kept.insert(member.name.clone(), KeptContribution { number, last });
            if let Some(before) = known {
                let purge = link.stream.purge().filter(subject).sequence(before.last + 1);
                answered(purge.into_future()).await?;
            }
            done.push(contribution.member().to_string());
        }
        Ok(done)
    }

    pub async fn snapshot(&mut self, members: &[Member]) -> Result<Vec<String>, Problem> {
        let Some(mut link) = self.link.take() else { return Err(self.away()) };
        self.kept.clear();
        let done = self.keep(&mut link, members, 1).await;
        self.link = Some(link);
        done.map_err(Problem::unavailable)
    }

    fn away(&self) -> Problem {
        Problem::unavailable(self.common.view.trouble.clone().unwrap_or_else(|| "the broker is away".into()))
    }

    /// Takes a member out: what it gave, from what is kept of it, goes into a notice that all members hear.
    pub async fn drop_member(&mut self, asked: &str) -> Result<Vec<String>, Problem> {
        let Some(mut link) = self.link.take() else { return Err(self.away()) };
        let done = self.drop_all(&mut link, asked).await;
        self.link = Some(link);
        let dropped = done.map_err(Problem::unavailable)?;
        if dropped.is_empty() {
            return Err(Problem::not_found(format!("there is no member {asked:?}")));
        }
        Ok(dropped)
    }

    async fn drop_all(&mut self, link: &mut Link, asked: &str) -> Result<Vec<String>, Failure> {
        let known = self.common.view.members.iter().map(|member| member.member.clone());
        let meant: Vec<String> = known.filter(|name| is_meant(name, asked)).collect();
        let mut dropped = Vec::new();
        for member in meant {
            // A delta may come in while its sum is put together: then once more.
            let mut done = false;
            for _ in 0..5 {
                done = self.try_drop(link, &member).await?;
                if done {
                    break;
                }
            }
            if !done {
                return Err(format!("{member} is giving at the moment; try again"));
            }
            dropped.push(member);
        }
        Ok(dropped)
    }

    async fn try_drop(&mut self, link: &mut Link, member: &str) -> Result<bool, Failure> {
        let (group, name) = (&self.common.view.group, token(member));
        let subject = subject(group, member);
        // Asked first: what comes in from here on is not in the sum, and the notice is then refused.
        let last = link.last_of(&subject).await?.unwrap_or(0);
        let mut sum = link.object(&name).await?.bytes().and_then(|bytes| Delta::from_bytes(&bytes).ok());
        for bytes in link.history(&subject).await? {
            let Ok(delta) = Delta::from_bytes(&bytes) else { continue };
            sum = match sum {
                None if delta.span().0 == 0 => Some(delta),
                None => None,
                Some(sum) if delta.epoch() == sum.epoch() && delta.span().1 <= sum.span().1 => Some(sum),
                Some(sum) => Some(sum.followed_by(&delta).unwrap_or(sum)),
            };
        }
        let Some(sum) = sum else { return Err(format!("nothing is kept of {member}")) };
        let notice = format!("drop-{name}-{}", sum.epoch());
        link.put(&notice, &sum.to_bytes().map_err(|e| e.to_string())?).await?;
        let message = PublishMessage::build()
            .message_id(&notice)
            .header(DROPS, notice.as_str())
            .expected_last_subject_sequence(last);
        if confirmed(link, &subject, message).await?.is_none() {
            return Ok(false);
        }
        link.put(&name, &sum.tombstone().to_bytes().map_err(|e| e.to_string())?).await?;
        Ok(true)
    }

    async fn hear_drop(
        &mut self,
        link: &mut Link,
        members: &[Member],
        sequence: u64,
        subject: &str,
        object: &str,
    ) -> Result<(), Failure> {
        let Some(bytes) = link.object(object).await?.bytes() else { return Ok(()) };
        let Ok(contribution) = Delta::from_bytes(&bytes) else { return Ok(()) };
        if !self.is_of(subject, &contribution) {
            self.common.refuse(subject, in_the_name_of(&contribution));
            return Ok(());
        }
        for member in members {
            let standing = member.standing().await.map_err(|problem| problem.detail)?;
            let Some(membership) = standing.map(|standing| standing.membership) else { continue };
            let own = membership.member == contribution.member();
            let heard = membership.heard.get(contribution.member()).copied();
            let epoch = if own { Some(membership.given.epoch) } else { heard.map(|heard| heard.epoch) };
            // Heard before, or never heard of.
            if epoch.is_none_or(|epoch| epoch > contribution.epoch()) {
                continue;
            }
            let contribution = contribution.clone();
            let sequence = self.known_up_to(member, sequence);
            let dropped =
                member.stream.control(move |owner| owner.drop_member(sequence, &contribution)).await;
            if own {
                self.unconfirmed.remove(&member.name);
                self.kept.remove(&member.name);
            }
            match dropped {
                Ok(true) => {}
                Ok(false) => self.rebuild(link, member).await?,
                Err(problem) => self.common.refuse(&member.name, problem.detail),
            }
        }
        Ok(())
    }
}

fn in_the_name_of(delta: &Delta) -> String {
    format!("it is in the name of another member, {}", delta.member())
}
