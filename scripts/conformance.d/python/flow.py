"""What every client library does with the simulator. The libraries differ in their client, which a `check_*.py` adapts."""

import asyncio
from urllib.parse import urlsplit

from sim import USER_AGENT
from steps import Step, holds, same

FILE = ("tide table.txt", b"high water 06:12\nlow water 12:30\n")


class Flow:
    """
    The steps and their shared state. `client` is a `ReceivedEvents` with:

    - `connect(token)`: returns when the client is ready and has its guilds
    - `own_id()`, `guild_names()`: the bot's id, and names by id, as the client knows them
    - `send(channel_id, content, filename, data)`: sends a message with a file; returns its id and the file's URL
    - `react(channel_id, message_id, emoji)`
    - `close()`

    It records `("message", content)`, `("reaction", message_id, user_id, emoji)`, `("answered", interaction_id)` after it
    has responded "Hello" to an interaction, and `("resumed",)`.
    """

    def __init__(self, sim, client):
        self.sim = sim
        self.client = client
        self.bot = None
        self.guild = None
        self.channel = None
        self.message = None

    def steps(self):
        return [
            Step("logs in", self.logs_in, needed=True),
            Step("receives every guild", self.receives_guilds),
            Step("receives a message of a user", self.receives_message),
            Step("sends a message with a file", self.sends_file, needed=True),
            Step("reacts, and receives the reaction of a user", self.reacts),
            Step("responds to a slash command", self.answers_command),
            Step("sends a heartbeat on request, and goes on after the ACK", self.heartbeats),
            Step("resumes after a disconnect, missing nothing", self.resumes),
            Step("logs out", self.logs_out),
        ]

    async def logs_in(self):
        self.sim.drive("POST", "/sim/guilds", {"name": "Zürich 市場 🏛", "members": 2})
        state = self.sim.state()
        self.bot = state["bots"][0]
        self.guild = state["guilds"][-1]
        self.channel = self.guild["channels"][0]["id"]
        await self.client.connect(self.bot["token"])
        same(str(self.client.own_id()), self.bot["user_id"], "own user id")

    async def receives_guilds(self):
        held = {guild["id"]: guild["name"] for guild in self.sim.state()["guilds"]}
        same({str(guild): name for guild, name in self.client.guild_names().items()}, held, "guilds")

    def say(self, content):
        self.sim.drive("POST", "/sim/messages", {"channel_id": self.channel, "content": content})

    async def receives_message(self):
        self.say("hello from a user")
        await self.client.wait_received(lambda what: what == ("message", "hello from a user"))

    def stored(self, path=""):
        """Messages of the channel, from the simulator and not from the client's cache."""
        headers = {"User-Agent": USER_AGENT, "Authorization": f"Bot {self.bot['token']}"}
        return self.sim.get_json(f"/api/v10/channels/{self.channel}/messages{path}", headers)

    async def sends_file(self):
        self.message, url = await self.client.send(self.channel, "with a file", *FILE)
        stored = self.stored(f"/{self.message}")
        same(stored["content"], "with a file", "content")
        same([item["size"] for item in stored["attachments"]], [len(FILE[1])], "sizes of the attachments")
        same(url.split("?")[0], stored["attachments"][0]["url"], "URL of the file")
        same(self.sim.send("GET", urlsplit(url).path).text.encode(), FILE[1], "content of the file")

    async def reacts(self):
        await self.client.react(self.channel, self.message, "🌊")
        reaction = {"channel_id": self.channel, "message_id": str(self.message), "emoji": "🌊"}
        self.sim.drive("POST", "/sim/reactions", reaction)
        owner = self.guild["owner_id"]
        wanted = ("reaction", str(self.message), owner, "🌊")
        await self.client.wait_received(lambda what: what == wanted)
        reactions = self.stored(f"/{self.message}")["reactions"]
        same([(item["emoji"]["name"], item["count"], item["me"]) for item in reactions], [("🌊", 2, True)], "reactions")

    async def answers_command(self):
        where = {"guild_id": self.guild["id"], "channel_id": self.channel}
        fired = self.sim.drive("POST", "/sim/commands", {**where, "name": "greet"})
        await self.client.wait_received(lambda what: what == ("answered", fired["id"]))
        newest = self.stored("?limit=1")[0]
        same(newest["content"], "Hello", "the reply")
        same(newest["interaction_metadata"]["id"], fired["id"], "the interaction of the reply")

    async def heartbeats(self):
        before = self.sim.score()
        self.sim.drive("POST", "/sim/gateway/faults", {"kind": "heartbeat_request"})
        # The simulator counts a heartbeat when it sends the ACK.
        while self.sim.score()["heartbeats"] == before["heartbeats"]:
            await asyncio.sleep(0.05)
        self.say("after the ACK")
        await self.client.wait_received(lambda what: what == ("message", "after the ACK"))
        after = self.sim.score()
        same(after["identifies"] - before["identifies"], 0, "identifies seen by the simulator")
        same(after["resumes"] - before["resumes"], 0, "resumes seen by the simulator")

    async def resumes(self):
        before = self.sim.score()
        # The gateway is silent for a moment, so that the client misses the message.
        self.sim.drive("POST", "/sim/gateway/faults", {"kind": "disconnect", "code": 4000, "hold_ms": 300})
        self.say("missed")
        await self.client.wait_received(lambda what: what == ("message", "missed"))
        await self.client.wait_received(lambda what: what == ("resumed",))
        self.say("after the resume")
        await self.client.wait_received(lambda what: what == ("message", "after the resume"))
        after = self.sim.score()
        same(after["resumes"] - before["resumes"], 1, "resumes seen by the simulator")
        same(after["identifies"] - before["identifies"], 0, "identifies seen by the simulator")
        holds(self.client.received.count(("message", "missed")) == 1, "the message arrived more than once")

    async def logs_out(self):
        await self.client.close()
