//! Generates operations for a guild.

use fastrand::Rng;
use tokio::sync::Semaphore;

use crate::{
    caller::Accepted,
    errand::{Errand, Props, Sort},
    stage::{Place, Stage},
};

/// Generates operations for a guild, no two alike.
pub(crate) struct Asker {
    pub(crate) place: Place,
    number: usize,
    given: usize,
    permitted: usize,
    /// The last created role that was not assigned yet: its key and its name.
    made: Option<(String, String)>,
}

impl Asker {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, number: 0, given: 0, permitted: 0, made: None }
    }

    /// An operation of this kind, or a message if nothing is left for this kind.
    pub(crate) async fn next(&mut self, sort: Sort, stage: &Stage) -> Errand {
        let mut props = Props::default();
        let fits = match sort {
            Sort::AssignRole => self.next_pair().map(|(member, role)| (props.member, props.role) = (member, role)),
            Sort::UpdatePermissions => {
                let role = self.place.roles.get(self.permitted).copied();
                self.permitted += 1;
                role.map(|role| props.role = role)
            }
            Sort::AssignByKey => {
                self.made.take().map(|made| (props.made, props.member) = (made, self.place.members[0]))
            }
            Sort::DeleteRole => self.place.doomed_roles.pop().map(|doomed| props.doomed = doomed),
            Sort::DeleteChannel => self.place.doomed_channels.pop().map(|doomed| props.doomed = doomed),
            Sort::Followup => {
                props.interaction = stage.interaction(self.place.guild).await;
                Some(())
            }
            Sort::CreateRole
            | Sort::CreateChannel
            | Sort::EnsureRole
            | Sort::EnsureChannel
            | Sort::SendMessage
            | Sort::EnsureMessage
            | Sort::PinMessage
            | Sort::SendDm
            | Sort::Post => Some(()),
        };
        let sort = fits.map_or(Sort::SendMessage, |()| sort);
        self.number += 1;
        let errand = Errand::new(sort, &self.place, self.number, &props);
        self.made = errand.makes_role().or(self.made.take());
        errand
    }

    /// A member, and a role that this member does not have yet.
    fn next_pair(&mut self) -> Option<(u64, u64)> {
        let Place { members, roles, .. } = &self.place;
        let pair = (members.get(self.given % members.len())?, roles.get(self.given / members.len())?);
        self.given += 1;
        Some((*pair.0, *pair.1))
    }
}

/// Submits operations in a guild, one after the other, as long as there are permits.
pub(crate) async fn asks(
    stage: &Stage,
    mut asker: Asker,
    sorts: &[Sort],
    permits: &Semaphore,
    seed: u64,
) -> Vec<Accepted> {
    let mut rng = Rng::with_seed(seed);
    let mut accepted = Vec::new();
    while let Ok(permit) = permits.acquire().await {
        permit.forget();
        let errand = asker.next(sorts[rng.usize(..sorts.len())], stage).await;
        let mut one = stage.submit(&errand).await;
        if rng.u8(..10) == 0 && errand.makes_role().is_none() {
            stage.take_back(&mut one).await;
        }
        accepted.push(one);
    }
    accepted
}
