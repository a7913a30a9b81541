"""hikari against the simulator."""

import asyncio
import sys

import hikari

from flow import Flow
from received_events import ReceivedEvents
from sim import Sim
from steps import run

INTENTS = (
    hikari.Intents.GUILDS
    | hikari.Intents.GUILD_MESSAGES
    | hikari.Intents.GUILD_MESSAGE_REACTIONS
    | hikari.Intents.MESSAGE_CONTENT
)


class Client(ReceivedEvents):
    """A hikari bot, as the flow uses it."""

    def __init__(self, origin):
        super().__init__()
        self.origin = origin
        self.bot = None

    async def connect(self, token):
        self.bot = hikari.GatewayBot(
            token, intents=INTENTS, rest_url=f"{self.origin}/api/v10", banner=None, logs=None
        )
        for listener in (self.on_message, self.on_reaction, self.on_interaction, self.on_resumed):
            self.bot.listen()(listener)
        await self.bot.start(check_for_updates=False)

    async def on_message(self, event: hikari.MessageCreateEvent):
        await self.record(("message", event.message.content))

    async def on_reaction(self, event: hikari.ReactionAddEvent):
        await self.record(("reaction", str(event.message_id), str(event.user_id), str(event.emoji_name)))

    async def on_interaction(self, event: hikari.InteractionCreateEvent):
        interaction = event.interaction
        await interaction.create_initial_response(hikari.ResponseType.MESSAGE_CREATE, "Hello")
        await self.record(("answered", str(interaction.id)))

    async def on_resumed(self, _event: hikari.ShardResumedEvent):
        await self.record(("resumed",))

    def own_id(self):
        return self.bot.get_me().id

    def guild_names(self):
        return {guild: held.name for guild, held in self.bot.cache.get_guilds_view().items()}

    async def send(self, channel_id, content, filename, data):
        file = hikari.Bytes(data, filename)
        message = await self.bot.rest.create_message(int(channel_id), content, attachment=file)
        return message.id, message.attachments[0].url

    async def react(self, channel_id, message_id, emoji):
        await self.bot.rest.add_reaction(int(channel_id), message_id, emoji)

    async def close(self):
        await self.bot.close()


async def main(origin):
    return await run("hikari", Flow(Sim(origin), Client(origin)).steps())


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(sys.argv[1])) else 0)
