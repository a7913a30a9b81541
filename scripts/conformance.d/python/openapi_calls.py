"""Calls to the simulator's REST API; each response is checked against the description."""

import json
from collections import defaultdict
from urllib.parse import quote, urlencode

from openapi_description import shape
from openapi_findings import Finding
from sim import USER_AGENT

# A valid id without an object: snowflakes of this size are from 2015.
UNKNOWN_ID = "100000000000000001"
LOOSE = {"limit": 10_000, "per_ms": 1_000}
REFUSED = (400, 401, 403, 404)


class NotAsExpected(Exception):
    """A call that a recipe depends on had an unexpected response."""


class Caller:
    """Calls routes by their template and records the calls and their responses."""

    def __init__(self, sim, description, findings, token):
        self.sim = sim
        self.description = description
        self.findings = findings
        self.token = token
        self.routes = {(route["method"], shape(route["path"])): route for route in sim.drive("GET", "/sim/routes")}
        self.statuses = defaultdict(set)
        self.codes = set()
        self.scopes = set()
        self.answers = 0

    def call(self, method, template, ids=(), body=None, *, query=None, expect=(200, 201, 204), auth=True, headers=None):
        """Calls a route, checks its response and returns the parsed body."""
        route = self.routes.get((method, shape(template)))
        if route is None:
            raise NotAsExpected(f"the simulator has no route {method} {template}")
        path = "/api/v10" + _filled(template, ids) + (f"?{urlencode(query)}" if query else "")
        sent = {"User-Agent": USER_AGENT, **(headers or {})}
        if auth:
            sent["Authorization"] = f"Bot {self.token}"
        expect = (expect,) if isinstance(expect, int) else expect
        answer = self.sim.send(method, path, body, sent)
        parsed = self.check(route, answer)
        if answer.status not in expect:
            wanted = " or ".join(str(status) for status in expect)
            raise NotAsExpected(f"{method} {path} returned {answer.status}, not {wanted}: {answer.text[:300]}")
        return parsed

    def check(self, route, answer):
        """Checks one response against the description and records deviations."""
        self.answers += 1
        name = f"{route['method']} {route['path']}"
        self.statuses[route["method"], shape(route["path"])].add(answer.status)

        def deviates(kind, at, message):
            self.findings.add(Finding(name, answer.status, kind, at, message))

        parsed = None
        if answer.text:
            if answer.headers.get("content-type") != "application/json":
                deviates("header", "Content-Type", f"{answer.headers.get('content-type')!r} is not 'application/json'")
            try:
                parsed = json.loads(answer.text)
            except ValueError:
                deviates("body", "$", "not JSON")
                return None
        if answer.status >= 400 and isinstance(parsed, dict):
            self.codes.add(parsed.get("code"))
        if answer.status == 429:
            self._check_rate_limited(answer, deviates)
        if "via" not in answer.headers:
            deviates("header", "Via", "missing, though genuine answers carry it")

        operation = self.description.operation(route["method"], route["path"])
        if operation is None:
            deviates("status", "-", "the description has no such route")
            return parsed
        described = operation.response(answer.status)
        if described is None:
            deviates("status", "-", f"not a described status ({', '.join(operation.node['responses'])})")
            return parsed
        key = described[0]
        for at, message in operation.header_errors(key, answer.headers):
            deviates("header", at, message)
        if operation.body_schema(key) is None:
            if answer.text:
                deviates("body", "$", "there should be no body")
        elif not answer.text:
            deviates("body", "$", "the body is missing")
        else:
            for kind, at, message in operation.body_errors(key, parsed):
                deviates(kind, at, message)
        return parsed

    def _check_rate_limited(self, answer, deviates):
        scope = answer.headers.get("x-ratelimit-scope")
        self.scopes.add(scope)
        if scope not in ("user", "shared", "global"):
            deviates("header", "X-RateLimit-Scope", f"{scope!r} is no scope")
        if not answer.headers.get("retry-after", "").isdecimal():
            deviates("header", "Retry-After", f"{answer.headers.get('retry-after')!r} is not whole seconds")
        if (scope == "global") != ("x-ratelimit-global" in answer.headers):
            deviates("header", "X-RateLimit-Global", "must be present for the global scope, and for no other")

    def exercise(self, method, template, ids=(), body=None, *, query=None, expect=(200, 201, 204), wrong=(), auth=True):
        """
        Triggers all responses of a route: without a token, for an unknown object or an invalid id, for bodies that are
        not JSON or invalid (`wrong`), for the valid request, and beyond its limit. Returns the body of the success.
        """
        if auth:
            self.call(method, template, ids, body, query=query, auth=False, expect=401)
        if ids:
            for first in (UNKNOWN_ID, "nonsense"):
                self.call(method, template, (first, *ids[1:]), body, query=query, auth=auth, expect=REFUSED)
        if body is not None:
            other_form = {"0": 0} if isinstance(body, list) else [0]
            for bad in (b"{", other_form, *wrong):
                self.call(method, template, ids, bad, query=query, auth=auth, expect=400)
        route = self.routes[method, shape(template)]
        with TightLimit(self.sim, route):
            done = self.call(method, template, ids, body, query=query, expect=expect, auth=auth)
            self.call(method, template, ids, body, query=query, expect=429, auth=auth)
        return done

    def never_answered(self):
        """Returns routes that were never called with success, and those that never returned a 429."""
        names = {key: f"{route['method']} {route['path']}" for key, route in self.routes.items()}
        idle = [name for key, name in names.items() if not any(status < 300 for status in self.statuses[key])]
        unlimited = [name for key, name in names.items() if 429 not in self.statuses[key] and name not in idle]
        return idle, unlimited


def loosen(sim):
    """
    Raises the limits for a check that calls faster than any bot: they remain, with their headers, but are not reached.
    The limit on a channel's name is unchanged, because no other limit behaves like it.
    """
    limits = sim.drive("GET", "/sim/limits")
    limits["global"].update(limit=100_000)
    for route in limits["routes"]:
        if route["case"] != "name_or_topic":
            route.update(LOOSE)
    sim.drive("PUT", "/sim/limits", limits)


class TightLimit:
    """Limits a route to one call a minute inside the block, so that the second one gets a 429."""

    def __init__(self, sim, route):
        self.sim = sim
        self.route = {"method": route["method"], "path": route["path"]}

    def __enter__(self):
        self._set(limit=1, per_ms=60_000)

    def __exit__(self, *_):
        self._set(**LOOSE)

    def _set(self, **limit):
        self.sim.drive("PUT", "/sim/limits/routes", {**self.route, **limit, "algorithm": "fixed"})


def _filled(template, ids):
    parts = template.split("/")
    values = iter(ids)
    filled = [quote(str(next(values)), safe="") if part.startswith("{") else part for part in parts]
    if next(values, None) is not None:
        raise ValueError(f"more ids than parameters for {template}")
    return "/".join(filled)
