"""discord.py against the simulator: what an ordinary bot does, and what it does when its connection breaks."""

import asyncio
import os
import sys

import discord
import yarl

from bot import Bot, HeldReconnect, add_commands, intents
from sim import Sim
from steps import Step, holds, run, same

# Address of a proxy that REST calls go through, if there is one.
REST_ORIGIN = os.environ.get("REST_ORIGIN")


class Life:
    """The steps and their shared state: the client, the guild they use and its text channels."""

    def __init__(self, sim):
        self.sim = sim
        self.bot = None
        self.running = None
        self.guild = None
        self.channel = None
        self.quiet = None

    def steps(self):
        return [
            Step("logs in", self.logs_in, needed=True),
            Step("receives every guild with its name, channels, roles and members", self.receives_guilds),
            Step("creates, renames, assigns, removes and deletes a role", self.manages_role),
            Step("creates, edits and deletes a channel", self.manages_channel),
            Step("sends, edits, pins and deletes a message", self.manages_message),
            Step("receives joins, messages and leaves of members", self.receives_user_events),
            Step("responds to a slash command", self.answers_command),
            Step("responds to a slash command after deferring", self.answers_deferred),
            Step("responds to a button", self.answers_button),
            Step("sends a heartbeat on request, and goes on after the ACK", self.heartbeats),
            Step("resumes after a disconnect, missing nothing and repeating nothing", self.resumes_after_disconnect),
            Step("resumes when the gateway requests a reconnect", self.resumes_when_told_to),
            Step("identifies again when its session is invalid", self.identifies_anew),
            Step("respects a low route limit without a 429", self.obeys_route_limit),
            *([Step("makes 150 calls at once, none of which is lost", self.survives_burst)] if REST_ORIGIN else []),
            Step("logs out", self.logs_out),
            Step("runs two shards in one client", self.runs_two_shards),
        ]

    async def logs_in(self):
        for name in ("Harbour", 'Mill & "Wheel" <3>', "Zürich 市場 🏛"):
            self.sim.drive("POST", "/sim/guilds", {"count": 1, "name": name, "members": 5, "channels": 3})
        known = self.sim.state()["bots"][0]
        self.bot = Bot()
        add_commands(self.bot.tree)
        self.running = asyncio.create_task(self.bot.start(known["token"]))
        await self.bot_says(lambda what: what[0] == "ready")
        same(str(self.bot.user.id), known["user_id"], "own user id")
        same(str(self.bot.application_id), known["application_id"], "application id")
        self.guild = discord.utils.get(self.bot.guilds, name="Harbour")
        holds(self.guild, 'the guild "Harbour" did not arrive')
        self.channel, self.quiet = self.guild.text_channels[:2]

    async def bot_says(self, wanted):
        """Returns the next event of the bot; raises the error of the client if it ends meanwhile."""
        received = asyncio.ensure_future(self.bot.wait_received(wanted))
        done, _ = await asyncio.wait({received, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if received in done:
            return received.result()
        received.cancel()
        self.running.result()
        raise AssertionError("the client exited unexpectedly")

    async def receives_guilds(self):
        assert_guilds(self.bot, self.sim.state()["guilds"], lambda guild: 0)

    async def manages_role(self):
        reason = "conformance: schlüssel & more"
        role = await self.guild.create_role(
            name="Keeper",
            colour=discord.Colour(0x336699),
            hoist=True,
            mentionable=True,
            permissions=discord.Permissions(manage_messages=True),
            reason=reason,
        )
        same(role.colour.value, 0x336699, "the role's colour")
        holds(role.permissions.manage_messages, "the role's permissions")
        holds("Keeper" in self.role_names(), "the simulator does not have the new role")
        await role.edit(name="Warden")
        holds("Warden" in self.role_names(), "the simulator did not rename the role")
        holds("Keeper" not in self.role_names(), "the simulator still has the old name")

        member = next(m for m in self.guild.members if not m.bot and m.id != self.guild.owner_id)
        await member.add_roles(role)
        holds(role.id in await self.roles_of(member), "the role was not assigned")
        await member.remove_roles(role)
        holds(role.id not in await self.roles_of(member), "the role was not removed")

        await role.delete(reason="conformance")
        holds("Warden" not in self.role_names(), "the simulator still has the deleted role")
        created = [e async for e in self.guild.audit_logs(action=discord.AuditLogAction.role_create, limit=20)]
        reasons = [entry.reason for entry in created if entry.target.id == role.id]
        same(reasons, [reason], "the reasons in the audit log")

    def role_names(self):
        return [role["name"] for role in self.sim.guild(self.guild.id)["roles"]]

    async def roles_of(self, member):
        fresh = await self.guild.fetch_member(member.id)
        return [role.id for role in fresh.roles]

    async def manages_channel(self):
        category = await self.guild.create_category("Docks")
        everyone = self.guild.default_role
        channel = await self.guild.create_text_channel(
            "quay",
            topic="ships & tides",
            category=category,
            overwrites={everyone: discord.PermissionOverwrite(send_messages=False)},
            reason="conformance",
        )
        same(channel.topic, "ships & tides", "the channel's topic")
        same(channel.category_id, category.id, "the channel's category")
        same(channel.overwrites_for(everyone).send_messages, False, "the channel's overwrite")
        holds(str(channel.id) in self.channel_ids(), "the simulator does not have the new channel")
        await channel.set_permissions(everyone, send_messages=True)
        await channel.edit(topic="tides")
        fresh = await self.bot.fetch_channel(channel.id)
        same(fresh.topic, "tides", "the edited topic")
        same(fresh.overwrites_for(everyone).send_messages, True, "the edited overwrite")
        voice = await self.guild.create_voice_channel("bell", bitrate=64000, user_limit=5)
        same(voice.user_limit, 5, "the voice channel's limit")
        for made in (voice, channel, category):
            await made.delete()
        holds(str(channel.id) not in self.channel_ids(), "the simulator still has the deleted channel")

    def channel_ids(self):
        return [channel["id"] for channel in self.sim.guild(self.guild.id)["channels"]]

    async def manages_message(self):
        sent = await self.channel.send("first **words** ✨", embed=discord.Embed(title="A title", description="text"))
        same(sent.content, "first **words** ✨", "content")
        same(sent.author.id, self.bot.user.id, "author")
        same(sent.embeds[0].title, "A title", "the embed's title")
        edited = await sent.edit(content="second words")
        holds(edited.edited_at, "an edited message has the time of the edit")
        same((await self.channel.fetch_message(sent.id)).content, "second words", "content after the edit")
        await sent.pin()
        same([pin.id async for pin in self.channel.pins()], [sent.id], "pins")
        await sent.unpin()
        await sent.delete()
        try:
            await self.channel.fetch_message(sent.id)
        except discord.NotFound as error:
            same(error.code, 10008, "the error's code")
        else:
            raise AssertionError("a deleted message can still be fetched")

    async def receives_user_events(self):
        before = {member["id"] for member in await self.members()}
        self.sim.drive("POST", f"/sim/guilds/{self.guild.id}/members", {"count": 1})
        _, member = await self.bot_says(lambda what: what[0] == "join" and str(what[1].id) not in before)
        message = await self.say_and_hear("hello from a user", user_id=str(member.id))
        same(message.author.id, member.id, "author")
        same(message.guild.id, self.guild.id, "guild")
        self.sim.drive("DELETE", f"/sim/guilds/{self.guild.id}/members/{member.id}")
        await self.bot_says(lambda what: what[0] == "leave" and what[1].id == member.id)

    async def members(self):
        return [{"id": str(member.id)} async for member in self.guild.fetch_members(limit=None)]

    def say(self, content, **more):
        body = {"guild_id": str(self.guild.id), "channel_id": str(self.channel.id), "content": content, **more}
        self.sim.drive("POST", "/sim/messages", body)

    async def say_and_hear(self, content, **more):
        self.say(content, **more)
        _, message = await self.bot_says(lambda what: what[0] == "message" and what[1].content == content)
        return message

    async def fire(self, path, body):
        """Fires an interaction of a user in the steps' channel; returns it as the client receives it."""
        where = {"guild_id": str(self.guild.id), "channel_id": str(self.channel.id)}
        fired = self.sim.drive("POST", path, {**where, **body})
        _, found = await self.bot_says(lambda what: what[0] == "interaction" and str(what[1].id) == fired["id"])
        return found

    async def answers_command(self):
        self.bot.tree.copy_global_to(guild=self.guild)
        synced = await self.bot.tree.sync(guild=self.guild)
        same(sorted(command.name for command in synced), ["greet", "wait"], "the commands that were registered")
        greet = {"name": "greet", "options": [{"name": "who", "type": 3, "value": "Ada"}]}
        interaction = await self.fire("/sim/commands", greet)
        same(interaction.channel_id, self.channel.id, "the interaction's channel")
        holds(interaction.user in self.guild.members, "the interaction's user is not a member of the guild")
        await self.bot.wait_received(lambda what: what == ("answered", interaction.id))
        reply = await interaction.original_response()
        same(reply.content, "Hello Ada", "the reply")
        await interaction.edit_original_response(content="Hello again, Ada")
        followup = await interaction.followup.send("And one more thing", wait=True)
        held = {message.id: message.content async for message in self.channel.history(limit=10)}
        same(held.get(reply.id), "Hello again, Ada", "the reply in the channel")
        same(held.get(followup.id), "And one more thing", "the followup in the channel")
        await interaction.delete_original_response()
        try:
            await interaction.original_response()
            # The client uses its cache; the simulator is authoritative.
            await self.channel.fetch_message(reply.id)
        except discord.NotFound as error:
            same(error.code, 10008, "the error's code")
        else:
            raise AssertionError("a deleted reply can still be fetched")

    async def answers_deferred(self):
        interaction = await self.fire("/sim/commands", {"name": "wait"})
        await self.bot.wait_received(lambda what: what == ("answered", interaction.id))
        reply = await interaction.original_response()
        same((await self.channel.fetch_message(reply.id)).content, "Sorry for the wait", "the late reply")

    async def answers_button(self):
        pressed = asyncio.get_running_loop().create_future()

        class Panel(discord.ui.View):
            @discord.ui.button(label="Open", custom_id="open:1")
            async def open(self, interaction, _button):
                await interaction.response.edit_message(content="pressed", view=None)
                pressed.set_result(interaction.message.id)

        message = await self.channel.send("press", view=Panel())
        await self.fire("/sim/buttons", {"custom_id": "open:1", "message_id": str(message.id)})
        same(await pressed, message.id, "the message of the button")
        same((await self.channel.fetch_message(message.id)).content, "pressed", "content after the press")

    async def heartbeats(self):
        before = self.sim.score()
        self.sim.drive("POST", "/sim/gateway/faults", {"kind": "heartbeat_request"})
        # The simulator counts a heartbeat when it sends the ACK.
        while self.sim.score()["heartbeats"] == before["heartbeats"]:
            await asyncio.sleep(0.05)
        await self.say_and_hear("after the ACK")
        after = self.sim.score()
        same(after["identifies"] - before["identifies"], 0, "identifies seen by the simulator")
        same(after["resumes"] - before["resumes"], 0, "resumes seen by the simulator")

    async def resumes_after_disconnect(self):
        await self.assert_resumes({"kind": "disconnect", "code": 4000})

    async def resumes_when_told_to(self):
        await self.assert_resumes({"kind": "reconnect"})

    async def assert_resumes(self, fault):
        """After `fault`, events from while the client was disconnected arrive once, in order, and before RESUMED."""
        before = self.sim.score()
        words = [f"{fault['kind']} {n}" for n in (1, 2, 3)]
        first, last = f"{fault['kind']} first", f"{fault['kind']} last"
        self.bot.received.clear()
        # The last event before the fault: a replay that starts too early repeats it.
        await self.say_and_hear(first)
        with HeldReconnect(self.bot) as gate:
            self.sim.drive("POST", "/sim/gateway/faults", fault)
            await self.bot_says(lambda what: what[0] == "disconnect")
            for content in words:
                self.say(content)
            gate.open()
            await self.bot_says(lambda what: what[0] == "resumed")
        # Events keep their order, so a duplicate would have arrived before this one.
        await self.say_and_hear(last)
        received = [what[1].content if what[0] == "message" else what[0] for what in self.bot.received]
        same(received, [first, "disconnect", *words, "resumed", last], "events of the client")
        after = self.sim.score()
        same(after["resumes"] - before["resumes"], 1, "resumes seen by the simulator")
        same(after["identifies"] - before["identifies"], 0, "identifies seen by the simulator")

    async def identifies_anew(self):
        before = self.sim.score()
        self.bot.received.clear()
        self.sim.drive("POST", "/sim/gateway/faults", {"kind": "invalid_session", "resumable": False})
        await self.bot_says(lambda what: what[0] == "ready")
        after = self.sim.score()
        same(after["identifies"] - before["identifies"], 1, "identifies seen by the simulator")
        await self.say_and_hear("after the new session")
        # A new session creates new objects for everything.
        self.guild = self.bot.get_guild(self.guild.id)
        self.quiet = self.guild.get_channel(self.quiet.id)

    async def obeys_route_limit(self):
        limit = {"limit": 2, "per_ms": 2000, "algorithm": "fixed"}
        self.sim.drive(
            "PUT", "/sim/limits/routes", {"method": "POST", "path": "/channels/{channel.id}/messages", **limit}
        )
        before = self.sim.score()
        words = [f"paced {n}" for n in range(8)]
        for content in words:
            await self.quiet.send(content)
        held = [message.content async for message in self.quiet.history(limit=20, oldest_first=True)]
        same(held, words, "the messages in the channel")
        after = self.sim.score()
        same(after["rate_limited"] - before["rate_limited"], 0, "429s given by the simulator")

    async def survives_burst(self):
        """Through a proxy with limits of its own: each of many calls at once arrives, exactly once."""
        route = "POST /channels/{channel.id}/typing"
        before = self.sim.arrived(route)
        channels = [channel for guild in self.bot.guilds for channel in guild.text_channels]

        async def type_in(channel):
            async with channel.typing():
                pass

        await asyncio.gather(*(type_in(channels[n % len(channels)]) for n in range(150)))
        same(self.sim.arrived(route) - before, 150, "requests that arrived")

    async def logs_out(self):
        await self.bot.close()
        await self.running

    async def runs_two_shards(self):
        client = discord.AutoShardedClient(intents=intents(), shard_count=2)
        ready = asyncio.Event()

        @client.event
        async def on_ready():
            ready.set()

        running = asyncio.create_task(client.start(self.sim.state()["bots"][0]["token"]))
        waiting = asyncio.create_task(ready.wait())
        try:
            done, _ = await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running in done:
                running.result()
                raise AssertionError("the client exited unexpectedly")
            assert_guilds(client, self.sim.state()["guilds"], lambda guild: (guild.id >> 22) % 2)
        finally:
            waiting.cancel()
            await client.close()
            await asyncio.gather(running, return_exceptions=True)


def assert_guilds(client, expected, shard_of):
    """Checks that every guild of the simulator is complete in the client's cache, and on its shard."""
    same(len(client.guilds), len(expected), "number of guilds")
    for held in expected:
        guild = client.get_guild(int(held["id"]))
        holds(guild is not None and not guild.unavailable, f"guild {held['name']} is not available")
        same(guild.name, held["name"], "guild name")
        same(names(guild.channels), named(held["channels"]), f"channels of {guild.name}")
        same(names(guild.roles), named(held["roles"]), f"roles of {guild.name}")
        same(len(guild.members), held["member_count"], f"members of {guild.name}")
        holds(guild.me is not None, f"the bot's own member is missing in {guild.name}")
        same(guild.shard_id or 0, shard_of(guild), f"shard of {guild.name}")


def names(objects):
    return sorted(f"{item.id} {item.name}" for item in objects)


def named(objects):
    return sorted(f"{item['id']} {item['name']}" for item in objects)


async def main(origin):
    sim = Sim(origin)
    discord.http.Route.BASE = f"{REST_ORIGIN or origin}/api/v10"
    discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(origin.replace("http", "ws", 1) + "/")
    return await run(os.environ.get("CHECK_LABEL", "py"), Life(sim).steps())


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(sys.argv[1])) else 0)
