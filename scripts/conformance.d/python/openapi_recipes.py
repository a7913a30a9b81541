"""Recipes that trigger the responses of each route. A recipe covers one kind of object, from creation to deletion."""

import json

GUILD_ROLES = "/guilds/{guild.id}/roles"
GUILD_ROLE = "/guilds/{guild.id}/roles/{role.id}"
GUILD_CHANNELS = "/guilds/{guild.id}/channels"
CHANNEL = "/channels/{channel.id}"
OVERWRITE = "/channels/{channel.id}/permissions/{overwrite.id}"
MEMBERS = "/guilds/{guild.id}/members"
MEMBER = "/guilds/{guild.id}/members/{user.id}"
MEMBER_ROLE = "/guilds/{guild.id}/members/{user.id}/roles/{role.id}"
MESSAGES = "/channels/{channel.id}/messages"
MESSAGE = "/channels/{channel.id}/messages/{message.id}"
REACTIONS = "/channels/{channel.id}/messages/{message.id}/reactions"
REACTION = "/channels/{channel.id}/messages/{message.id}/reactions/{emoji}"
CALLBACK = "/interactions/{interaction.id}/{interaction.token}/callback"
WEBHOOK = "/webhooks/{application.id}/{interaction.token}"
ORIGINAL = "/webhooks/{application.id}/{interaction.token}/messages/@original"
FOLLOWUP = "/webhooks/{application.id}/{interaction.token}/messages/{message.id}"

AUDIT_LOG = "/guilds/{guild.id}/audit-logs"

ADMINISTRATOR = 1 << 3
VIEW_CHANNEL = 1 << 10
SEND_MESSAGES = 1 << 11
BUTTON_ROW = {"type": 1, "components": [{"type": 2, "style": 1, "label": "Open", "custom_id": "open:1"}]}


class Scene:
    """The objects of the recipes: their own guild, its users and a text channel."""

    def __init__(self, caller, sim):
        self.caller = caller
        self.sim = sim
        bot = sim.state()["bots"][0]
        self.application = bot["application_id"]
        self.bot = bot["user_id"]
        made = sim.drive("POST", "/sim/guilds", {"count": 1, "name": "Openapi", "members": 4, "channels": 2})
        self.guild = made["guilds"][0]["id"]
        held = sim.guild(self.guild)
        self.channel = next(channel["id"] for channel in held["channels"] if channel["type"] == 0)
        joined = sim.drive("POST", f"/sim/guilds/{self.guild}/members", {"count": 1})
        self.user = joined["id"]

    def interaction(self, path="/sim/commands", **body):
        """Fires an interaction; returns its id and token."""
        where = {"guild_id": self.guild, "channel_id": self.channel}
        fired = self.sim.drive("POST", path, {**where, **body})
        return fired["id"], fired["token"]


def gateway(scene):
    c = scene.caller
    c.exercise("GET", "/gateway", auth=False)
    c.exercise("GET", "/gateway/bot")


def identity(scene):
    c = scene.caller
    c.exercise("GET", "/users/@me")
    c.exercise("GET", "/users/@me/guilds")
    c.call("GET", "/users/@me/guilds", query={"limit": 1, "with_counts": "true"})
    c.exercise("GET", "/users/{user.id}", [scene.user])
    c.call("GET", "/users/{user.id}", [scene.bot])
    c.exercise("GET", "/applications/@me")
    c.exercise("GET", "/oauth2/applications/@me")


def commands(scene):
    c = scene.caller
    greet = {
        "name": "greet",
        "description": "Greets somebody",
        "options": [
            {"type": 3, "name": "who", "description": "Whom", "required": True},
            {"type": 4, "name": "times", "description": "How often", "choices": [{"name": "twice", "value": 2}]},
        ],
    }
    nameless = [{"description": "It has no name"}]
    for path, ids in (
        ("/applications/{application.id}/commands", [scene.application]),
        ("/applications/{application.id}/guilds/{guild.id}/commands", [scene.application, scene.guild]),
    ):
        c.exercise("PUT", path, ids, [greet, {"name": "Report", "type": 2}], wrong=[nameless])
        c.exercise("GET", path, ids)
        made = c.exercise("POST", path, ids, {"name": "once", "description": "Not for long"}, wrong=nameless)
        c.call("POST", path, ids, {"name": "once", "description": "The same again, which replaces it"})
        one = path + "/{command.id}"
        c.exercise("GET", one, [*ids, made["id"]])
        c.exercise("DELETE", one, [*ids, made["id"]])
        c.call("GET", one, [*ids, made["id"]], expect=404)


def guild(scene):
    c = scene.caller
    c.exercise("GET", "/guilds/{guild.id}", [scene.guild])
    c.call("GET", "/guilds/{guild.id}", [scene.guild], query={"with_counts": "true"})


def roles(scene):
    c, guild_id = scene.caller, scene.guild
    full = {
        "name": "Keeper",
        "permissions": str(SEND_MESSAGES),
        "colors": {"primary_color": 0x336699, "secondary_color": None, "tertiary_color": None},
        "hoist": True,
        "mentionable": True,
    }
    role = c.exercise("POST", GUILD_ROLES, [guild_id], full, wrong=[{"name": "x" * 101}, {"permissions": "many"}])
    plain = c.call("POST", GUILD_ROLES, [guild_id], {}, headers={"X-Audit-Log-Reason": "sch%C3%B6n"})
    c.exercise("GET", GUILD_ROLES, [guild_id])
    c.exercise("GET", GUILD_ROLE, [guild_id, role["id"]])
    c.call("GET", GUILD_ROLE, [guild_id, guild_id])
    c.exercise("PATCH", GUILD_ROLE, [guild_id, role["id"]], {"name": "Warden"}, wrong=[{"name": "x" * 101}])
    order = [{"id": role["id"], "position": 1}, {"id": plain["id"], "position": 2}]
    c.exercise("PATCH", GUILD_ROLES, [guild_id], order, wrong=[[{"position": 1}]])

    listed = c.call("GET", GUILD_ROLES, [guild_id])
    own = next(item for item in listed if item.get("tags", {}).get("bot_id") == scene.bot)
    c.call("PATCH", GUILD_ROLE, [guild_id, own["id"]], {"name": "Mine"}, expect=(400, 403))
    c.call("DELETE", GUILD_ROLE, [guild_id, own["id"]], expect=(400, 403))
    c.call("DELETE", GUILD_ROLE, [guild_id, guild_id], expect=(400, 403))

    c.exercise("PUT", MEMBER_ROLE, [guild_id, scene.user, role["id"]])
    c.call("PUT", MEMBER_ROLE, [guild_id, scene.user, own["id"]], expect=(400, 403))
    c.exercise("DELETE", MEMBER_ROLE, [guild_id, scene.user, role["id"]])
    c.exercise("DELETE", GUILD_ROLE, [guild_id, role["id"]])
    c.call("DELETE", GUILD_ROLE, [guild_id, role["id"]], expect=404)


def channels(scene):
    c, guild_id = scene.caller, scene.guild
    category = c.call("POST", GUILD_CHANNELS, [guild_id], {"name": "Docks", "type": 4})
    deny = {"id": guild_id, "type": 0, "allow": "0", "deny": str(SEND_MESSAGES)}
    text = {"name": "quay", "type": 0, "topic": "ships", "parent_id": category["id"], "permission_overwrites": [deny]}
    channel = c.exercise("POST", GUILD_CHANNELS, [guild_id], text, wrong=[{"type": 0}, {"name": "x", "type": 99}])
    voice = c.call("POST", GUILD_CHANNELS, [guild_id], {"name": "bell", "type": 2, "bitrate": 64000, "user_limit": 5})
    news = c.call("POST", GUILD_CHANNELS, [guild_id], {"name": "news", "type": 5})
    forum = c.call("POST", GUILD_CHANNELS, [guild_id], {"name": "talk", "type": 15})
    c.exercise("GET", GUILD_CHANNELS, [guild_id])
    order = [{"id": channel["id"], "position": 3}, {"id": voice["id"], "position": 4}]
    c.exercise("PATCH", GUILD_CHANNELS, [guild_id], order, wrong=[[{"position": 1}]])
    c.exercise("GET", CHANNEL, [channel["id"]])
    for other in (category, voice, news, forum):
        c.call("GET", CHANNEL, [other["id"]])
    c.exercise("PATCH", CHANNEL, [channel["id"]], {"nsfw": True, "rate_limit_per_user": 5}, wrong=[{"name": ""}])
    sub_limited(c, news["id"])

    target = [channel["id"], scene.user]
    c.exercise("PUT", OVERWRITE, target, {"type": 1, "allow": "1024", "deny": "0"}, wrong=[{"type": 7}])
    c.exercise("DELETE", OVERWRITE, target)
    c.exercise("DELETE", CHANNEL, [channel["id"]])
    for other in (voice, news, forum, category):
        c.call("DELETE", CHANNEL, [other["id"]])
    c.call("GET", CHANNEL, [channel["id"]], expect=404)


def sub_limited(c, channel_id):
    """A channel's name may change twice in ten minutes; the third time is a 429 with calls left in the bucket."""
    for name in ("mole", "pier"):
        c.call("PATCH", CHANNEL, [channel_id], {"name": name})
    c.call("PATCH", CHANNEL, [channel_id], {"name": "dam"}, expect=429)


def members(scene):
    c, guild_id = scene.caller, scene.guild
    c.exercise("GET", MEMBERS, [guild_id], query={"limit": 2})
    c.exercise("GET", MEMBER, [guild_id, scene.user])
    c.call("GET", MEMBER, [guild_id, scene.bot])
    c.exercise("PATCH", MEMBER, [guild_id, scene.user], {"nick": "Ada"}, wrong=[{"nick": "x" * 33}])
    c.call("PATCH", MEMBER, [guild_id, scene.user], {"roles": []})
    c.exercise("PATCH", "/guilds/{guild.id}/members/@me", [guild_id], {"nick": "Warden"}, wrong=[{"nick": "x" * 33}])
    joined = scene.sim.drive("POST", f"/sim/guilds/{guild_id}/members", {"count": 1})
    c.exercise("DELETE", MEMBER, [guild_id, joined["id"]])
    c.call("GET", MEMBER, [guild_id, joined["id"]], expect=404)
    owner = c.call("GET", "/guilds/{guild.id}", [guild_id])["owner_id"]
    c.call("PATCH", MEMBER, [guild_id, owner], {"nick": "Boss"}, expect=403)


def messages(scene):
    c, channel_id = scene.caller, scene.channel
    full = {
        "content": "hello",
        "nonce": "n-1",
        "enforce_nonce": True,
        "embeds": [{"title": "A title", "description": "text", "fields": [{"name": "a", "value": "b"}]}],
        "components": [BUTTON_ROW],
        "allowed_mentions": {"parse": []},
    }
    message = c.exercise("POST", MESSAGES, [channel_id], full, wrong=[{}, {"content": "x" * 2001}])
    again = c.call("POST", MESSAGES, [channel_id], full)
    if again["id"] != message["id"]:
        raise AssertionError("a repeated nonce created a second message")
    reply = {"content": f"<@{scene.user}> and @everyone", "message_reference": {"message_id": message["id"]}}
    c.call("POST", MESSAGES, [channel_id], reply)
    c.exercise("GET", MESSAGE, [channel_id, message["id"]])
    for query in ({"limit": 2}, {"after": message["id"]}, {"before": message["id"]}, {"around": message["id"]}):
        c.call("GET", MESSAGES, [channel_id], query=query)
    c.exercise("GET", MESSAGES, [channel_id])
    c.exercise("PATCH", MESSAGE, [channel_id, message["id"]], {"content": "edited"}, wrong=[{"content": "x" * 2001}])

    theirs = {"guild_id": scene.guild, "channel_id": channel_id, "content": "mine", "user_id": scene.user}
    scene.sim.drive("POST", "/sim/messages", theirs)
    listed = c.call("GET", MESSAGES, [channel_id], query={"limit": 1})
    c.call("PATCH", MESSAGE, [channel_id, listed[0]["id"]], {"content": "not yours"}, expect=403)

    c.exercise("POST", "/channels/{channel.id}/typing", [channel_id])
    made = [c.call("POST", MESSAGES, [channel_id], {"content": f"passing {n}"})["id"] for n in range(2)]
    c.exercise("POST", MESSAGES + "/bulk-delete", [channel_id], {"messages": made}, wrong=[{"messages": []}])

    for pins in ("/channels/{channel.id}/pins", "/channels/{channel.id}/messages/pins"):
        c.exercise("PUT", pins + "/{message.id}", [channel_id, message["id"]])
        c.exercise("GET", pins, [channel_id])
        c.exercise("DELETE", pins + "/{message.id}", [channel_id, message["id"]])
    c.exercise("DELETE", MESSAGE, [channel_id, message["id"]])
    c.call("GET", MESSAGE, [channel_id, message["id"]], expect=404)


def attachments(scene):
    c, channel_id = scene.caller, scene.channel
    described = {"content": "with files", "attachments": [{"id": 0, "description": "The first"}]}
    files = [("a.txt", b"one"), ("b.txt", b"two")]
    message = c.call("POST", MESSAGES, [channel_id], form(described, files), headers=FORM)
    if [item["size"] for item in message["attachments"]] != [3, 3]:
        raise AssertionError(f"the attachments are {message['attachments']}")
    c.call("GET", MESSAGE, [channel_id, message["id"]])
    kept = {"attachments": [{"id": message["attachments"][0]["id"]}]}
    c.call("PATCH", MESSAGE, [channel_id, message["id"]], form(kept, files[1:]), headers=FORM)
    c.call("POST", MESSAGES, [channel_id], form({}, files * 6), headers=FORM, expect=400)
    c.call("POST", MESSAGES, [channel_id], b"--b", headers=FORM, expect=400)
    first, hook = scene.interaction(name="greet"), [scene.application]
    answer = form({"type": 4, "data": {"content": "a file"}}, files)
    c.call("POST", CALLBACK, first, answer, headers=FORM, auth=False, query={"with_response": "true"}, expect=200)
    c.call("POST", WEBHOOK, [*hook, first[1]], form({"content": "another"}, files), headers=FORM, auth=False, expect=200)


FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def form(payload, files):
    """Returns a multipart body with the boundary of `FORM`."""
    parts = [b'name="payload_json"\r\n\r\n' + json.dumps(payload).encode()]
    for number, (name, data) in enumerate(files):
        parts.append(f'name="files[{number}]"; filename="{name}"\r\nContent-Type: text/plain\r\n\r\n'.encode() + data)
    return b"".join(b"--b\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--b--\r\n"


def reactions(scene):
    c, channel_id = scene.caller, scene.channel
    message = c.call("POST", MESSAGES, [channel_id], {"content": "vote"})["id"]
    wave = [channel_id, message, "🌊"]
    c.exercise("PUT", REACTION + "/@me", wave)
    react = {"channel_id": channel_id, "message_id": message, "user_id": scene.user}
    for emoji in ("🌊", "party:7", "🎉"):
        scene.sim.drive("POST", "/sim/reactions", {**react, "emoji": emoji})
    shown = c.call("GET", MESSAGE, [channel_id, message])["reactions"]
    if [(item["emoji"]["name"], item["count"], item["me"]) for item in shown][0] != ("🌊", 2, True):
        raise AssertionError(f"the reactions are {shown}")
    c.call("GET", MESSAGES, [channel_id], query={"limit": 1})
    c.exercise("GET", REACTION, wave)
    c.call("GET", REACTION, [channel_id, message, "party:7"], query={"limit": 1, "after": "0", "type": 0})
    c.call("PUT", REACTION + "/@me", [channel_id, message, "no emoji"], expect=400)
    c.exercise("DELETE", REACTION + "/@me", wave)
    c.exercise("DELETE", REACTION + "/{user.id}", [*wave, scene.user])
    c.exercise("DELETE", REACTION, [channel_id, message, "party:7"])
    c.exercise("DELETE", REACTIONS, [channel_id, message])
    if "reactions" in c.call("GET", MESSAGE, [channel_id, message]):
        raise AssertionError("the reactions were not removed")


def soundboard(scene):
    scene.caller.exercise("GET", "/soundboard-default-sounds")


def direct_messages(scene):
    c = scene.caller
    channel = c.exercise("POST", "/users/@me/channels", (), {"recipient_id": scene.user}, wrong=[{"recipient_id": "x"}])
    c.call("GET", CHANNEL, [channel["id"]])
    c.call("POST", MESSAGES, [channel["id"]], {"content": "hello in private"})


def audit_log(scene):
    c = scene.caller
    c.exercise("GET", AUDIT_LOG, [scene.guild])
    entries = c.call("GET", AUDIT_LOG, [scene.guild], query={"action_type": 30, "user_id": scene.bot, "limit": 5})
    if not any(entry.get("reason") == "schön" for entry in entries["audit_log_entries"]):
        raise AssertionError("the audit log lacks the reason of the creation of a role")


def interactions(scene):
    c = scene.caller
    answer = {"type": 4, "data": {"content": "hello", "components": [BUTTON_ROW]}}
    first = scene.interaction(name="greet")
    c.exercise("POST", CALLBACK, first, answer, auth=False, wrong=[{"type": 99}], expect=204)
    c.call("POST", CALLBACK, first, answer, auth=False, expect=400)
    tell = {"with_response": "true"}
    c.call("POST", CALLBACK, scene.interaction(name="greet"), answer, auth=False, query=tell, expect=200)
    late = scene.interaction(name="greet")
    c.call("POST", CALLBACK, late, {"type": 5}, auth=False, query=tell, expect=200)
    modal = {
        "custom_id": "form:1",
        "title": "Form",
        "components": [{"type": 1, "components": [{"type": 4, "custom_id": "a", "label": "A", "style": 1}]}],
    }
    c.call("POST", CALLBACK, scene.interaction(name="greet"), {"type": 9, "data": modal}, auth=False)

    hook = [scene.application, first[1]]
    c.exercise("GET", ORIGINAL, hook, auth=False)
    c.exercise("PATCH", ORIGINAL, hook, {"content": "edited"}, auth=False, wrong=[{"content": "x" * 2001}])
    c.call("PATCH", ORIGINAL, [scene.application, late[1]], {"content": "sorry for the wait"}, auth=False)
    more = c.exercise("POST", WEBHOOK, hook, {"content": "more"}, auth=False, expect=200, wrong=[{}])
    c.call("POST", WEBHOOK, hook, {"content": "for you alone", "flags": 64}, auth=False, query={"wait": "true"})
    target = [*hook, more["id"]]
    c.exercise("GET", FOLLOWUP, target, auth=False)
    c.exercise("PATCH", FOLLOWUP, target, {"content": "more, edited"}, auth=False, wrong=[{"content": "x" * 2001}])
    c.exercise("DELETE", FOLLOWUP, target, auth=False)
    c.exercise("DELETE", ORIGINAL, hook, auth=False)
    c.call("GET", ORIGINAL, hook, auth=False, expect=404)
    c.call("GET", ORIGINAL, [scene.application, "run-out"], auth=False, expect=401)

    message = c.call("POST", MESSAGES, [scene.channel], {"content": "press", "components": [BUTTON_ROW]})
    button = scene.interaction("/sim/buttons", custom_id="open:1", message_id=message["id"])
    update = {"type": 7, "data": {"content": "pressed", "components": []}}
    c.call("POST", CALLBACK, button, update, auth=False, query=tell, expect=200)
    c.call("POST", CALLBACK, scene.interaction("/sim/modals", custom_id="form:1"), answer, auth=False)


def permissions(scene):
    """403 responses to reads and writes of a bot without permissions."""
    c, guild_id = scene.caller, scene.guild
    role = c.call("POST", GUILD_ROLES, [guild_id], {"name": "Out of reach"})
    hide = {"id": guild_id, "type": 0, "allow": "0", "deny": str(VIEW_CHANNEL)}
    hidden = c.call("POST", GUILD_CHANNELS, [guild_id], {"name": "vault", "permission_overwrites": [hide]})
    scene.sim.drive("PATCH", f"/sim/guilds/{guild_id}", {"bot_permissions": 0})
    try:
        c.call("POST", GUILD_ROLES, [guild_id], {}, expect=403)
        c.call("PATCH", GUILD_ROLES, [guild_id], [{"id": role["id"], "position": 1}], expect=403)
        c.call("PATCH", GUILD_ROLE, [guild_id, role["id"]], {"name": "Mine"}, expect=403)
        c.call("DELETE", GUILD_ROLE, [guild_id, role["id"]], expect=403)
        c.call("POST", GUILD_CHANNELS, [guild_id], {"name": "quay"}, expect=403)
        c.call("PATCH", CHANNEL, [scene.channel], {"nsfw": True}, expect=403)
        c.call("DELETE", CHANNEL, [scene.channel], expect=403)
        c.call("PUT", OVERWRITE, [scene.channel, scene.user], {"type": 1, "allow": "1024"}, expect=403)
        c.call("PATCH", MEMBER, [guild_id, scene.user], {"nick": "Ada"}, expect=403)
        c.call("PUT", MEMBER_ROLE, [guild_id, scene.user, role["id"]], expect=403)
        c.call("GET", AUDIT_LOG, [guild_id], expect=403)
        c.call("GET", CHANNEL, [hidden["id"]], expect=403)
        c.call("POST", MESSAGES, [hidden["id"]], {"content": "hello"}, expect=403)
    finally:
        scene.sim.drive("PATCH", f"/sim/guilds/{guild_id}", {"bot_permissions": ADMINISTRATOR})
    c.call("DELETE", GUILD_ROLE, [guild_id, role["id"]])
    c.call("DELETE", CHANNEL, [hidden["id"]])


def limits(scene):
    """429 responses that no route's own limit causes: the shared and the global scope."""
    c = scene.caller
    for scope in ("shared", "global"):
        refuse = {"kind": "rate_limit", "scope": scope, "retry_after_ms": 1500}
        scene.sim.drive("POST", "/sim/faults", {"route": f"GET {CHANNEL}", "do": refuse, "count": 1})
        c.call("GET", CHANNEL, [scene.channel], expect=429)
        c.call("GET", CHANNEL, [scene.channel])


RECIPES = (
    gateway,
    identity,
    commands,
    guild,
    roles,
    channels,
    members,
    messages,
    attachments,
    reactions,
    soundboard,
    direct_messages,
    audit_log,
    interactions,
    permissions,
    limits,
)
