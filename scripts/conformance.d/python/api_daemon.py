"""A daemon connected to the simulator, for the check of its API."""

import http.client
import json
import os
import re
import subprocess
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

# Longer than a working daemon ever takes.
STUCK = 60.0


def without_policies(program):
    """Settings that allow one caller as many requests as a check makes."""
    settings = subprocess.run([program, "config", "template"], capture_output=True, text=True, check=True).stdout
    names = [name for name in ("heavy", "light", "failed") if f"{name}_per_second" in settings]
    return {f"GUILDHALL__API__POLICIES__{name.upper()}_PER_SECOND": "0" for name in names}


class Daemon:
    """`guildhall serve` in its own folder, from when it is ready until the block ends."""

    def __init__(self, program, sim, folder, settings=None):
        """`settings` are further settings, as environment variables."""
        self.key = "gh_admin_of-this-check-alone"
        environment = {
            "GUILDHALL__DISCORD__TOKEN": sim.state()["bots"][0]["token"],
            "GUILDHALL__DISCORD__API_URL": f"{sim.origin}/api/v10",
            "GUILDHALL__DISCORD__GATEWAY_URL": f"ws://{sim.address}",
            "GUILDHALL__API__BIND": "127.0.0.1:0",
            "GUILDHALL__API__ADMIN_KEY": self.key,
            "GUILDHALL__STORE__URL": f"sqlite:{folder}/guildhall.db",
            "GUILDHALL__LOG__FORMAT": "json",
            **without_policies(program),
            **(settings or {}),
        }
        self._process = subprocess.Popen(
            [os.path.abspath(program), "serve"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
        )
        self.origin = None
        self.egress_origin = None
        self._log = []
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stderr:
            self._log.append(line)
            del self._log[:-200]
            if self.origin is None and '"listening"' in line:
                self.origin = f"http://{json.loads(line)['address']}"
                self._listens.set()
            if self.egress_origin is None and '"egress listening"' in line:
                self.egress_origin = f"http://{json.loads(line)['address']}"
        self._listens.set()

    def __enter__(self):
        try:
            self._listens.wait(STUCK)
            until = time.monotonic() + STUCK
            while self.origin is not None and time.monotonic() < until:
                if self._process.poll() is None and self.ask("GET", "/readyz")[0] == 200:
                    return self
                time.sleep(0.05)
            raise AssertionError("the daemon was not ready in time; its log: " + "".join(self._log[-20:]))
        except BaseException:
            self._stop()
            raise

    def __exit__(self, *_):
        self._stop()

    def _stop(self):
        self._process.terminate()
        try:
            self._process.wait(STUCK)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ended(self):
        """Returns its exit code, if it has ended."""
        return self._process.poll()

    def ask(self, method, path, body=None):
        """Sends one request with the admin key; returns the status and the body."""
        connection = http.client.HTTPConnection(urlsplit(self.origin).netloc, timeout=30)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def answers(self):
        """Returns the number of responses of the API by status."""
        counted = Counter()
        for line in self.ask("GET", "/metrics")[1].splitlines():
            if found := re.match(r'guildhall_api_requests_total\{.*status="(\d+)".*\} (\d+)', line):
                counted[found.group(1)] += int(found.group(2))
        return counted

    def make_key(self, scopes):
        """Creates a key with these scopes."""
        status, text = self.ask("POST", "/v1/keys", {"name": "a check", "scopes": scopes})
        assert status == 201, f"no key was made: {status} {text}"
        return json.loads(text)["key"]
