"""
Runs a check of a client library whose REST calls go through the REST proxy of a daemon, with tight limits in the simulator
and beside other clients of the same bot that make as many calls as they can. Then checks that Discord's side saw no limit
exceeded and every call.

    with_egress.py --bin PATH --label LABEL -- PROGRAM [ARGUMENTS...] ORIGIN

The program gets the address of the proxy in REST_ORIGIN, and its label in CHECK_LABEL. ORIGIN is that of the simulator.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from urllib.parse import urlsplit

from api_daemon import Daemon
from sim import USER_AGENT, Sim

# The global limit is 50 a second, as Discord's.
GLOBAL = 50
TIGHT = [
    ("POST", "/channels/{channel.id}/messages", 3),
    ("PATCH", "/channels/{channel.id}/messages/{message.id}", 2),
    ("POST", "/guilds/{guild.id}/roles", 1),
    ("PATCH", "/guilds/{guild.id}/roles/{role.id}", 1),
    ("POST", "/guilds/{guild.id}/channels", 1),
    ("DELETE", "/channels/{channel.id}", 2),
]
# A route without a limit of its own that the checks do not call, and clients that call it.
BUSY_ROUTE = "GET /users/{user.id}"
BUSY_CLIENTS = 8


class OtherGateway:
    """
    A second simulator, for the gateway of the daemon: the sessions and faults of the first one are those of the library
    alone.
    """

    def __init__(self, program):
        self._process = subprocess.Popen(
            [program, "sim", "--bind", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self._process.stdout.readline()
        assert line.startswith("listening on http://"), f"the second simulator did not start: {line}"
        self.url = line.strip().removeprefix("listening on ").replace("http", "ws", 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(60)


class BusyClients:
    """Clients of the same bot. Each makes a call as soon as the last one has its response, and repeats it after a 429."""

    def __init__(self, origin, bot):
        self._address = urlsplit(origin).netloc
        self._path = f"/api/v10/users/{bot['user_id']}"
        self._headers = {"Authorization": f"Bot {bot['token']}", "User-Agent": USER_AGENT}
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(BUSY_CLIENTS)]
        self._lock = threading.Lock()
        self.calls = 0
        self.problems = []

    def _run(self):
        connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            while not self._stopped.is_set():
                connection.request("GET", self._path, headers=self._headers)
                response = connection.getresponse()
                text = response.read()
                if response.status == 429:
                    time.sleep(json.loads(text)["retry_after"])
                    continue
                assert response.status == 200, f"{response.status}: {text[:200]}"
                with self._lock:
                    self.calls += 1
        except Exception as error:  # reported as a problem of the check
            self.problems.append(f"a busy client: {type(error).__name__}: {error}")
        finally:
            connection.close()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def check(sim, daemon, busy):
    """Returns what is wrong with the calls as Discord's side saw them."""
    score = sim.drive("GET", "/sim/score")
    problems = list(busy.problems)
    arrived = score["routes"].get(BUSY_ROUTE, {}).get("requests", 0)
    if busy.calls == 0 or arrived != busy.calls:
        problems.append(f"{arrived} calls of the busy clients arrived, but {busy.calls} have a response")
    if any(score["rate_limited"].values()):
        problems.append(f"429s: {score['rate_limited']}")
    if score["invalid_requests"]:
        problems.append(f"{score['invalid_requests']} invalid requests")
    if (most := max(score["max_per_second"].values())) > GLOBAL:
        problems.append(f"{most} requests in a second")
    answered = sum(
        float(line.rsplit(" ", 1)[1])
        for line in daemon.ask("GET", "/metrics")[1].splitlines()
        if line.startswith("guildhall_egress_requests_total{") and 'origin="discord"' in line
    )
    # Beside the library, only the daemon itself makes a few calls.
    if not 0 <= score["requests"] - answered <= 5:
        problems.append(f"{score['requests']} requests arrived, but the proxy has {answered:.0f} responses")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    sim = Sim(options.program[-1])
    with OtherGateway(options.bin) as gateway, tempfile.TemporaryDirectory() as folder:
        settings = {
            "GUILDHALL__EGRESS__ENABLED": "true",
            "GUILDHALL__EGRESS__BIND": "127.0.0.1:0",
            "GUILDHALL__DISCORD__GATEWAY_URL": gateway.url,
        }
        with Daemon(options.bin, sim, folder, settings) as daemon:
            for method, path, limit in TIGHT:
                body = {"method": method, "path": path, "limit": limit, "per_ms": 1000, "algorithm": "fixed"}
                sim.drive("PUT", "/sim/limits/routes", body)
            environment = {**os.environ, "REST_ORIGIN": daemon.egress_origin, "CHECK_LABEL": options.label}
            with BusyClients(daemon.egress_origin, sim.state()["bots"][0]) as busy:
                code = subprocess.run(options.program, env=environment, check=False).returncode
            problems = check(sim, daemon, busy)
    title = f"{options.label}: every call has a response, and none exceeded a limit of Discord"
    print(f"FAILED {title}: {'; '.join(problems)}" if problems else f"ok {title}", flush=True)
    return code or bool(problems)


if __name__ == "__main__":
    sys.exit(main())
