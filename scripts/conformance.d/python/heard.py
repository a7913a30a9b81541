"""Records the events of a client, so that a step can search them and wait for them."""

import asyncio


class Heard:
    """Events in their order, each a tuple whose first item is its kind."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.heard = []
        self.news = asyncio.Condition()

    async def hear(self, what):
        async with self.news:
            self.heard.append(what)
            self.news.notify_all()

    async def wait_heard(self, wanted):
        """Returns the first recorded or future event that `wanted` accepts."""
        async with self.news:
            await self.news.wait_for(lambda: any(wanted(what) for what in self.heard))
            return next(what for what in self.heard if wanted(what))
