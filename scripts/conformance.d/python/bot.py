"""A discord.py client that records its events, and a gate that keeps it from reconnecting."""

import asyncio

import discord
from discord import app_commands

from received_events import ReceivedEvents


class Bot(ReceivedEvents, discord.Client):
    """A client that records its events."""

    def __init__(self):
        super().__init__(intents=intents())
        self.tree = app_commands.CommandTree(self)

    async def on_ready(self):
        await self.record(("ready", None))

    async def on_message(self, message):
        await self.record(("message", message))

    async def on_member_join(self, member):
        await self.record(("join", member))

    async def on_member_remove(self, member):
        await self.record(("leave", member))

    async def on_resumed(self):
        await self.record(("resumed", None))

    async def on_disconnect(self):
        await self.record(("disconnect", None))

    async def on_interaction(self, interaction):
        await self.record(("interaction", interaction))


def intents():
    return discord.Intents(guilds=True, members=True, guild_messages=True, message_content=True)


def add_commands(tree):
    @tree.command(name="greet", description="Greets somebody")
    async def greet(interaction: discord.Interaction, who: str):
        await interaction.response.send_message(f"Hello {who}")
        await interaction.client.record(("answered", interaction.id))

    @tree.command(name="wait", description="Takes its time")
    async def wait(interaction: discord.Interaction):
        await interaction.response.defer()
        await interaction.edit_original_response(content="Sorry for the wait")
        await interaction.client.record(("answered", interaction.id))


class HeldReconnect:
    """Keeps a client that has lost its connection from opening a new one until the gate opens."""

    def __init__(self, client):
        self.http = client.http
        self.opened = asyncio.Event()

    def __enter__(self):
        connect = self.http.ws_connect

        async def held(*args, **kwargs):
            await self.opened.wait()
            return await connect(*args, **kwargs)

        self.http.ws_connect = held
        return self

    def __exit__(self, *_):
        self.open()
        del self.http.ws_connect

    def open(self):
        self.opened.set()
