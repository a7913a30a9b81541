"""Checks Guildhall's API against its own description: schemathesis sends valid and invalid requests to every route."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

from api_daemon import Daemon
from sim import Sim

# Scopes of the key of the second round: few, in one guild.
LIMITED = ["operations:read"]
# A stream does not end, so its response cannot be read completely.
ENDLESS = "/v1/operations/stream"
# Routes that take operations of every kind: every bound of every payload is thousands of requests. They are sampled, and
# all of them are tried only in long runs.
WIDE = "^submit"
# Checks of every response. Not included: that everything that matches the schemas is accepted, which schemas cannot
# express (that two fields exclude each other, that a channel type has a field), and that a key is required, which the round
# without a key checks.
CHECKS = ",".join([
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("origin", help="the simulator, http://127.0.0.1:PORT")
    arguments.add_argument("--bin", required=True, help="the guildhall binary")
    arguments.add_argument("--examples", type=int, default=8, help="requests by chance for each operation")
    arguments.add_argument("--seed", type=int, default=1, help="where chance begins")
    arguments.add_argument("--seconds", type=int, default=150, help="how long each round may take")
    arguments.add_argument("--all", action="store_true", help="every bound of everything")
    arguments = arguments.parse_args()

    sim = Sim(arguments.origin)
    guild = sim.state()["guilds"][0]["id"] if sim.state()["guilds"] else "1571715189416398849"
    failures = 0
    with tempfile.TemporaryDirectory() as folder, Daemon(arguments.bin, sim, folder) as daemon:
        rounds = [
            ("with the key that may do everything", lambda: daemon.key),
            ("with a key for one guild that may only look", lambda: daemon.make_key([*LIMITED, f"guild:{guild}"])),
            ("without a key", lambda: None),
        ]
        for title, key in rounds:
            shown = key()
            before = daemon.answers()
            problem, told = ask_everything(daemon, shown, folder, arguments)
            ended = daemon.ended()
            if ended is not None:
                problem = f"the daemon exited unexpectedly ({ended}); {problem or ''}"
            else:
                seen = daemon.answers() - before
                told += ", responses: " + ", ".join(f"{status} {count} times" for status, count in sorted(seen.items()))
                # If all requests or none were refused, the round has tested nothing.
                let_in = any(status.startswith("2") for status in seen)
                if problem is None and let_in != (shown is not None):
                    problem = f"{'some requests' if let_in else 'no requests'} were accepted; {told}"
            if problem is None:
                print(f"ok api: {title}: {told}", flush=True)
            else:
                failures += 1
                print(f"FAILED api: {title}: {problem}", flush=True)
    return 1 if failures else 0


def ask_everything(daemon, key, folder, arguments):
    """Runs one round; returns its error, if any, and the number of requests."""
    parts = [["--phases=examples,coverage,fuzzing"]]
    if key is None:
        parts = [["--phases=examples,fuzzing"]]
    elif not arguments.all:
        parts = [
            ["--phases=examples,coverage,fuzzing", f"--exclude-operation-id-regex={WIDE}"],
            ["--phases=examples,fuzzing", f"--include-operation-id-regex={WIDE}"],
        ]
    until = time.monotonic() + arguments.seconds
    problems, requests = [], 0
    for part in parts:
        problem, asked = run(part, daemon, key, folder, arguments, until - time.monotonic())
        requests += asked
        problems += problem
    return "\n  ".join(problems) or None, f"{requests} requests"


def run(part, daemon, key, folder, arguments, seconds):
    """Runs schemathesis once; returns its findings and the number of its requests."""
    command = [
        os.path.join(os.path.dirname(sys.executable), "schemathesis"),
        "--no-color",
        "run",
        f"{daemon.origin}/openapi.json",
        f"--checks={CHECKS}",
        f"--exclude-path={ENDLESS}",
        f"--max-examples={arguments.examples}",
        f"--seed={arguments.seed}",
        "--continue-on-failure",
        "--request-timeout=30",
        "--generation-database=none",
        "--suppress-health-check=all",
        "--warnings=off",
        *part,
    ]
    if key is not None:
        command += ["--header", f"Authorization: Bearer {key}"]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=max(seconds, 1), check=False)
    except subprocess.TimeoutExpired as late:
        print(late.stdout, file=sys.stderr, flush=True)
        return [f"not done after {arguments.seconds} s"], 0
    # The full output goes to the log.
    print(ran.stdout, ran.stderr, sep="\n", file=sys.stderr, flush=True)
    told = re.search(r"(\d+) generated", ran.stdout)
    requests = int(told.group(1)) if told else 0
    if ran.returncode == 0 and requests > 0:
        return [], requests
    said = [line.strip() for line in ran.stdout.splitlines() if re.match(r"\s*(- |\d+\. |curl |_+ [A-Z]+ )", line)]
    return [f"exit code {ran.returncode} after {requests} requests", *said[:60]], requests


if __name__ == "__main__":
    sys.exit(main())
