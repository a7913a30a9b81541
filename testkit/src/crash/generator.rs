//! Generates operations for a guild.

use fastrand::Rng;
use tokio::sync::Semaphore;

use super::{
    client::AcceptedOperation,
    fixture::{DaemonFixture, GuildFixture},
    test_operation::{Prerequisites, TestKind, TestOperation},
};

/// Generates operations for a guild, no two alike.
pub struct OperationGenerator {
    pub guild_fixture: GuildFixture,
    number: usize,
    assigned_count: usize,
    overwrite_count: usize,
    /// The last created role that was not assigned yet: its key and its name.
    unassigned_role: Option<(String, String)>,
}

impl OperationGenerator {
    pub fn new(guild_fixture: GuildFixture) -> Self {
        Self { guild_fixture, number: 0, assigned_count: 0, overwrite_count: 0, unassigned_role: None }
    }

    /// An operation of this kind, or a message if nothing is left for this kind.
    pub async fn next(&mut self, kind: TestKind, fixture: &DaemonFixture) -> TestOperation {
        let mut prerequisites = Prerequisites::default();
        let available = match kind {
            TestKind::AssignRole => self
                .next_member_and_role()
                .map(|(member, role)| (prerequisites.member, prerequisites.role) = (member, role)),
            TestKind::UpdatePermissions => {
                let role = self.guild_fixture.roles.get(self.overwrite_count).copied();
                self.overwrite_count += 1;
                role.map(|role| prerequisites.role = role)
            }
            TestKind::AssignByKey => self.unassigned_role.take().map(|existing_role| {
                (prerequisites.existing_role, prerequisites.member) = (existing_role, self.guild_fixture.members[0]);
            }),
            TestKind::DeleteRole => {
                self.guild_fixture.roles_to_delete.pop().map(|to_delete| prerequisites.to_delete = to_delete)
            }
            TestKind::DeleteChannel => {
                self.guild_fixture.channels_to_delete.pop().map(|to_delete| prerequisites.to_delete = to_delete)
            }
            TestKind::Followup => {
                prerequisites.interaction = fixture.create_interaction(self.guild_fixture.guild).await;
                Some(())
            }
            TestKind::CreateRole
            | TestKind::CreateChannel
            | TestKind::EnsureRole
            | TestKind::EnsureChannel
            | TestKind::SendMessage
            | TestKind::EnsureMessage
            | TestKind::PinMessage
            | TestKind::SendDm
            | TestKind::Post => Some(()),
        };
        let kind = available.map_or(TestKind::SendMessage, |()| kind);
        self.number += 1;
        let operation = TestOperation::new(kind, &self.guild_fixture, self.number, &prerequisites);
        self.unassigned_role = operation.created_role().or(self.unassigned_role.take());
        operation
    }

    /// A member, and a role that this member does not have yet.
    fn next_member_and_role(&mut self) -> Option<(u64, u64)> {
        let GuildFixture { members, roles, .. } = &self.guild_fixture;
        let pair = (members.get(self.assigned_count % members.len())?, roles.get(self.assigned_count / members.len())?);
        self.assigned_count += 1;
        Some((*pair.0, *pair.1))
    }
}

/// Submits operations in a guild, one after the other, as long as there are permits.
pub async fn submit_operations(
    fixture: &DaemonFixture,
    mut generator: OperationGenerator,
    kinds: &[TestKind],
    permits: &Semaphore,
    seed: u64,
) -> Vec<AcceptedOperation> {
    let mut rng = Rng::with_seed(seed);
    let mut accepted = Vec::new();
    while let Ok(permit) = permits.acquire().await {
        permit.forget();
        let operation = generator.next(kinds[rng.usize(..kinds.len())], fixture).await;
        let mut accepted_one = fixture.submit(&operation).await;
        if rng.u8(..10) == 0 && operation.created_role().is_none() {
            fixture.cancel(&mut accepted_one).await;
        }
        accepted.push(accepted_one);
    }
    accepted
}
