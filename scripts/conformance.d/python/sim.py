"""Controls the simulator: /sim/* and plain REST calls over one persistent connection."""

import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

USER_AGENT = "DiscordBot (http://127.0.0.1, 1.0)"


class SimError(Exception):
    """The simulator refused a control call: a defect of the check or the simulator, not a deviation from Discord."""


@dataclass
class Answer:
    """One response, with header names in lower case."""

    status: int
    headers: dict
    text: str


class Sim:
    """A simulator at `origin`, such as `http://127.0.0.1:4000`."""

    def __init__(self, origin):
        self.origin = origin.rstrip("/")
        self.address = urlsplit(self.origin).netloc
        self._connection = None

    def send(self, method, path, body=None, headers=None):
        """Sends one request; `body` is bytes or a JSON value."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        # The server may have closed a persistent connection; a new one is tried once.
        for fresh in (False, True):
            if self._connection is None or fresh:
                self._connection = http.client.HTTPConnection(self.address, timeout=30)
            try:
                self._connection.request(method, path, body=body, headers=headers)
                response = self._connection.getresponse()
                text = response.read().decode()
                return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, text)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if fresh:
                    raise
        raise AssertionError("unreachable: the second round returns or raises")

    def drive(self, method, path, body=None):
        """Calls `/sim/*`; the call must succeed."""
        answer = self.send(method, path, body)
        if answer.status >= 300:
            raise SimError(f"{method} {path} returned {answer.status}: {answer.text[:300]}")
        return json.loads(answer.text) if answer.text else None

    def get_json(self, path, headers):
        """Reads from the REST API; the call must succeed."""
        answer = self.send("GET", path, headers=headers)
        if answer.status != 200:
            raise SimError(f"GET {path} returned {answer.status}: {answer.text[:300]}")
        return json.loads(answer.text)

    def state(self):
        return self.drive("GET", "/sim/state")

    def guild(self, guild_id):
        """Returns a guild from the simulator's state, not from a client's cache."""
        for guild in self.state()["guilds"]:
            if guild["id"] == str(guild_id):
                return guild
        raise SimError(f"the simulator has no guild {guild_id}")

    def arrived(self, route):
        """Returns the number of requests that arrived at a route, such as `GET /channels/{channel.id}`."""
        return self.drive("GET", "/sim/score")["routes"].get(route, {}).get("requests", 0)

    def score(self):
        """Returns the counters that the checks compare before and after."""
        score = self.drive("GET", "/sim/score?brief=true")
        return {
            "identifies": score["gateway"]["identifies"],
            "resumes": score["gateway"]["resumes"],
            "heartbeats": score["gateway"]["heartbeats"],
            "rate_limited": sum(score["rate_limited"].values()),
        }
