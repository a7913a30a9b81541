"""A discord.py bot whose REST calls go through Guildhall's REST proxy: one line differs. It replies to /hello, and posts a
message about it.

    pip install discord.py
    DISCORD_TOKEN=... python3 examples/egress_discord_py.py

DISCORD_TOKEN is the bot token, with which the library also connects to Discord's gateway. EGRESS_URL is the address of the
proxy; the default is http://127.0.0.1:8081. GATEWAY_URL is the address of another gateway than Discord's, if there is one.
"""

import os

import discord
import yarl

EGRESS = os.environ.get("EGRESS_URL", "http://127.0.0.1:8081")

# The one line. The proxy is not an HTTP proxy: do not set the option `proxy` of the client.
discord.http.Route.BASE = f"{EGRESS}/api/v10"

# discord.py does not ask Discord for the address of the gateway.
if gateway := os.environ.get("GATEWAY_URL"):
    discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(gateway)


class Bot(discord.Client):
    def __init__(self):
        super().__init__(intents=discord.Intents(guilds=True))
        self.tree = discord.app_commands.CommandTree(self)

    async def setup_hook(self):
        await self.tree.sync()

    async def on_ready(self):
        print(f"ready as {self.user.name}, by {EGRESS}", flush=True)


bot = Bot()


@bot.tree.command(name="hello", description="Says hello")
async def hello(interaction: discord.Interaction):
    # The token in its path permits this call. It is not delayed by the others.
    await interaction.response.send_message("Hello yourself!")
    await interaction.channel.send(f"{interaction.user.mention} says hello to everybody.")


bot.run(os.environ["DISCORD_TOKEN"])
