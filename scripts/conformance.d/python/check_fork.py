"""
A fork of discord.py against the simulator: nextcord or py-cord. Both kept the names of discord.py, so one client serves
them; each has its own venv, because py-cord is installed under discord.py's name.

    check_fork.py nextcord|pycord ORIGIN
"""

import asyncio
import importlib
import io
import sys

from flow import Flow
from received_events import ReceivedEvents
from sim import Sim
from steps import run

MODULES = {"nextcord": "nextcord", "pycord": "discord"}


def client_of(library):
    """Returns a client of the library, which is a subclass of the library's own."""
    intents = library.Intents(guilds=True, guild_messages=True, guild_reactions=True, message_content=True)

    class Client(ReceivedEvents, library.Client):
        def __init__(self):
            super().__init__(intents=intents)
            self.running = None

        async def connect_and_wait(self, token):
            self.running = asyncio.create_task(self.start(token))
            ready = asyncio.create_task(self.wait_until_ready())
            # The task of the client ends first if it cannot log in.
            await asyncio.wait({self.running, ready}, return_when=asyncio.FIRST_COMPLETED)
            if self.running.done():
                ready.cancel()
                self.running.result()

        async def on_message(self, message):
            await self.record(("message", message.content))

        async def on_raw_reaction_add(self, event):
            await self.record(("reaction", str(event.message_id), str(event.user_id), str(event.emoji)))

        async def on_interaction(self, interaction):
            await interaction.response.send_message("Hello")
            await self.record(("answered", str(interaction.id)))

        async def on_resumed(self):
            await self.record(("resumed",))

    return Client()


class Fork:
    """The client of a fork, as the flow uses it."""

    def __init__(self, library):
        self.library = library
        self.client = client_of(library)

    @property
    def received(self):
        return self.client.received

    def wait_received(self, wanted):
        return self.client.wait_received(wanted)

    async def connect(self, token):
        await self.client.connect_and_wait(token)

    def own_id(self):
        return self.client.user.id

    def guild_names(self):
        return {guild.id: guild.name for guild in self.client.guilds}

    async def send(self, channel_id, content, filename, data):
        file = self.library.File(io.BytesIO(data), filename=filename)
        message = await self.client.get_channel(int(channel_id)).send(content, file=file)
        return message.id, message.attachments[0].url

    async def react(self, channel_id, message_id, emoji):
        message = await self.client.get_channel(int(channel_id)).fetch_message(message_id)
        await message.add_reaction(emoji)

    async def close(self):
        await self.client.close()
        # py-cord's own task ends with an error when the client is closed.
        await asyncio.gather(self.client.running, return_exceptions=True)


def use_simulator(library, label, origin):
    """Both libraries ask the REST API for the gateway's URL."""
    if label == "nextcord":
        library.http.Route.BASE = f"{origin}/api/v10"
    else:
        library.http.Route.API_BASE_URL = f"{origin}/api/v{{API_VERSION}}"


async def main(label, origin):
    library = importlib.import_module(MODULES[label])
    use_simulator(library, label, origin)
    return await run(label, Flow(Sim(origin), Fork(library)).steps())


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(*sys.argv[1:3])) else 0)
