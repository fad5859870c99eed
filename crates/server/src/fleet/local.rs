//! Streams of one group on one server: each is handed what the others learnt, in one task and one order. There is nothing to
//! lose between them: a member that missed something, because it was made later or the server fell, is given the others' whole
//! contributions, which their own logs keep.

use ultta::Delta;

use super::{Common, GroupView, Member, is_meant};
use crate::owner::{Standing, Taken};
use crate::problem::Problem;

pub struct Local {
    common: Common,
    /// The members that were there last time.
    known: Vec<String>,
}

impl Local {
    pub fn new(common: Common) -> Self {
        Self { common, known: Vec::new() }
    }

    pub async fn round(&mut self, members: &[Member]) -> GroupView {
        let mut trouble = None;
        let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        let mut look = self.known != names;
        if look {
            for member in members {
                let name = member.name.clone();
                trouble = member.stream.control(move |owner| owner.join(&name)).await.err().or(trouble);
            }
            self.known = names;
        }
        for giver in members {
            let Some(least) = self.common.due(&giver.stream.name) else { continue };
            if self.common.settings.read_only {
                continue;
            }
            look = true;
            match giver.cut(least).await {
                Ok(None) => {}
                Ok(Some(delta)) => {
                    self.common.note_cut(&giver.stream.name);
                    trouble = self.hand_over(&delta, giver, members).await.err().or(trouble);
                }
                Err(problem) => trouble = Some(problem),
            }
        }
        if look {
            trouble = self.catch_up(members).await.err().or(trouble);
            self.common.look(members, 0).await;
        }
        self.common.view.trouble = trouble.map(|problem| problem.detail);
        self.common.view.clone()
    }

    async fn hand_over(&mut self, delta: &Delta, giver: &Member, members: &[Member]) -> Result<(), Problem> {
        let bytes: std::sync::Arc<[u8]> = delta.to_bytes()?.into();
        self.common.given(delta, bytes.len());
        for taker in members.iter().filter(|taker| taker.name != giver.name) {
            let (delta, shared) = (delta.clone(), bytes.clone());
            let member = delta.member().to_string();
            match taker.stream.control(move |owner| owner.take(0, &delta, &shared)).await? {
                Taken::New => self.common.view.taken.deltas += 1,
                Taken::Refused(reason) => self.common.refuse(&member, reason),
                // Catching up finds out what is missing.
                Taken::Known | Taken::Gap | Taken::Stolen => continue,
            }
            self.common.view.taken.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    /// Gives members that lack something of another the whole of it.
    async fn catch_up(&mut self, members: &[Member]) -> Result<(), Problem> {
        let mut standings = Vec::new();
        for member in members {
            standings.extend(member.standing().await?.map(|standing| (member, standing)));
        }
        for (member, Standing { membership, .. }) in &standings {
            let others: Vec<_> = standings.iter().filter(|(other, _)| other.name != member.name).collect();
            let lacks = others.iter().any(|(_, other)| {
                let (name, given) = (&other.membership.member, other.membership.given);
                let heard = membership.heard.get(name).copied().unwrap_or_default();
                (heard.epoch, heard.number) != (given.epoch, given.number)
            });
            if !lacks {
                continue;
            }
            let mut contributions = Vec::new();
            for (other, _) in others {
                let delta = other.stream.control(|owner| owner.contribution()).await?;
                contributions.push(delta);
            }
            // Another head, other settings: it stays without them.
            for left in member.stream.control(move |owner| owner.rebuild(0, contributions)).await? {
                self.common.refuse(&left.member, left.reason);
            }
        }
        Ok(())
    }

    pub async fn drop_member(&mut self, members: &[Member], asked: &str) -> Result<Vec<String>, Problem> {
        let mut dropped = Vec::new();
        for giver in members.iter().filter(|giver| is_meant(&giver.name, asked)) {
            let contribution = giver.stream.control(|owner| owner.contribution()).await?;
            for taker in members {
                let contribution = contribution.clone();
                taker.stream.control(move |owner| owner.drop_member(0, &contribution)).await?;
            }
            dropped.push(contribution.member().to_string());
        }
        if dropped.is_empty() {
            return Err(Problem::not_found(format!("there is no member {asked:?}")));
        }
        self.catch_up(members).await?;
        Ok(dropped)
    }
}
