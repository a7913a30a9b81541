"""Guildhall's API against its own description: schemathesis asks for everything that it tells of, rightly and wrongly."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

from api_daemon import Daemon
from sim import Sim

# What a key of its own may do in the second round: little, in one guild.
LIMITED = ["operations:read"]
# A stream has no end, and so cannot be read to it.
ENDLESS = "/v1/operations/stream"
# What takes operations of every kind: every bound of every payload, one after the other, is thousands of requests. They are
# tried by chance, and all of them only when there is time.
WIDE = "^submit"
# What is held against every answer. Not among them: that all that fits the schemas is accepted, which they cannot tell
# (that two fields say nothing in common, that a channel of this type has such a field), and that the key is asked for,
# which the round without one sees to.
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
                problem = f"the daemon ended by itself ({ended}); {problem or ''}"
            else:
                seen = daemon.answers() - before
                told += ", answered " + ", ".join(f"{status} {count} times" for status, count in sorted(seen.items()))
                # What nobody is let in for, or everybody, was not tried.
                let_in = any(status.startswith("2") for status in seen)
                if problem is None and let_in != (shown is not None):
                    problem = f"{'somebody' if let_in else 'nobody'} was let in; {told}"
            if problem is None:
                print(f"ok api: {title}: {told}", flush=True)
            else:
                failures += 1
                print(f"FAILED api: {title}: {problem}", flush=True)
    return 1 if failures else 0


def ask_everything(daemon, key, folder, arguments):
    """One round; what is wrong, or nothing, and how much was asked for."""
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
    """Runs schemathesis once; what it found, and how many requests it made."""
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
    # All of it goes to the log, for who wants to know more.
    print(ran.stdout, ran.stderr, sep="\n", file=sys.stderr, flush=True)
    told = re.search(r"(\d+) generated", ran.stdout)
    requests = int(told.group(1)) if told else 0
    if ran.returncode == 0 and requests > 0:
        return [], requests
    said = [line.strip() for line in ran.stdout.splitlines() if re.match(r"\s*(- |\d+\. |curl |_+ [A-Z]+ )", line)]
    return [f"exit code {ran.returncode} after {requests} requests", *said[:60]], requests


if __name__ == "__main__":
    sys.exit(main())
