"""Records the events of a client, so that a step can search them and wait for them."""

import asyncio


class ReceivedEvents:
    """Events in their order, each a tuple whose first item is its kind."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.received = []
        self.changed = asyncio.Condition()

    async def record(self, what):
        async with self.changed:
            self.received.append(what)
            self.changed.notify_all()

    async def wait_received(self, wanted):
        """Returns the first recorded or future event that `wanted` accepts."""
        async with self.changed:
            await self.changed.wait_for(lambda: any(wanted(what) for what in self.received))
            return next(what for what in self.received if wanted(what))
