//! Notifies a supervisor that one of its guilds has ended, for whatever reason.

use actix::{Actor, Context, Handler, Message, WeakAddr};

/// A guild has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildExited<K> {
    pub(crate) child: K,
    /// Distinguishes successive guilds of one child.
    pub(crate) generation: u64,
}

impl<K: 'static> Message for ChildExited<K> {
    type Result = ();
}

/// A field of a guild: sends [`ChildExited`] when the guild is dropped, after a panic as well.
pub(crate) struct ExitNotifier<S, K>
where
    S: Actor<Context = Context<S>> + Handler<ChildExited<K>>,
    K: Copy + Send + 'static,
{
    exit: ChildExited<K>,
    supervisor: WeakAddr<S>,
}

impl<S, K> ExitNotifier<S, K>
where
    S: Actor<Context = Context<S>> + Handler<ChildExited<K>>,
    K: Copy + Send + 'static,
{
    pub(crate) fn new(child: K, generation: u64, supervisor: WeakAddr<S>) -> Self {
        Self { exit: ChildExited { child, generation }, supervisor }
    }
}

impl<S, K> std::fmt::Debug for ExitNotifier<S, K>
where
    S: Actor<Context = Context<S>> + Handler<ChildExited<K>>,
    K: Copy + Send + std::fmt::Debug + 'static,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExitNotifier").field("exit", &self.exit).finish_non_exhaustive()
    }
}

impl<S, K> Drop for ExitNotifier<S, K>
where
    S: Actor<Context = Context<S>> + Handler<ChildExited<K>>,
    K: Copy + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.upgrade() {
            // Ignores the bound of the mailbox: there is at most one of these for each guild, and it must not be lost.
            supervisor.do_send(self.exit);
        }
    }
}
