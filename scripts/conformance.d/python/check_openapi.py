"""Checks every REST route of the simulator against Discord's own API description."""

import argparse
import os
import sys

from openapi_calls import Caller, NotAsExpected, loosen
from openapi_description import Description
from openapi_findings import AllowList, Findings
from openapi_recipes import RECIPES, Scene
from sim import Sim, SimError

DEVIATIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "openapi_deviations.json")
# Errors that bots must be able to distinguish; each must have occurred, in its described form.
SCOPES = {"user", "shared", "global"}
CODES = {
    10002: "unknown application",
    10003: "unknown channel",
    10004: "unknown guild",
    10007: "unknown member",
    10008: "unknown message",
    10011: "unknown role",
    10013: "unknown user",
    10014: "unknown emoji",
    30015: "too many attachments",
    10062: "unknown interaction",
    40060: "already acknowledged",
    50001: "missing access",
    50005: "another's message",
    50006: "empty message",
    50013: "missing permissions",
    50027: "invalid webhook token",
    50035: "invalid form body",
    50109: "invalid JSON",
}


class Report:
    """Prints one line for each step, and the errors below a failed one."""

    def __init__(self):
        self.failures = 0

    def step(self, title, problems):
        if not problems:
            print(f"ok openapi: {title}", flush=True)
            return
        self.failures += 1
        print(f"FAILED openapi: {title}:", *problems, sep=" " if len(problems) == 1 else "\n  ", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("origin", help="the simulator, http://127.0.0.1:PORT")
    arguments.add_argument("--openapi", required=True, help="Discord's OpenAPI description")
    arguments = arguments.parse_args()

    sim = Sim(arguments.origin)
    findings = Findings(AllowList(DEVIATIONS))
    caller = Caller(sim, Description(arguments.openapi), findings, sim.state()["bots"][0]["token"])
    loosen(sim)
    report = Report()
    scene = Scene(caller, sim)
    for recipe in RECIPES:
        report.step(*follow(recipe, scene, findings))
    idle, unlimited = caller.never_answered()
    report.step("every route was called with success", idle)
    report.step("every route was called beyond its limit", unlimited)
    missing = sorted(SCOPES - caller.scopes)
    report.step("429s of every scope were seen", [f"none of scope {scope!r}" for scope in missing])
    absent = [f"never {code} ({what})" for code, what in CODES.items() if code not in caller.codes]
    report.step("errors of every kind that bots meet were seen", absent)
    unused = [f"{entry['route']} {entry['at']}" for entry in findings.allow_list.unused()]
    report.step("every allowed deviation still occurs", unused)
    print(f"openapi: {caller.answers} responses of {len(caller.routes)} routes checked against the description")
    return 1 if report.failures else 0


def follow(recipe, scene, findings):
    """Runs a recipe to its end or its first unexpected response; returns the step's title and its errors."""
    before = scene.caller.answers
    problems = []
    try:
        recipe(scene)
    except (NotAsExpected, SimError, AssertionError) as error:
        problems.append(str(error))
    except (KeyError, StopIteration, TypeError) as error:
        problems.append(f"an answer lacks what the next call needs: {type(error).__name__} {error}")
    problems.extend(f"{text}" + (f" ({times} times)" if times > 1 else "") for text, times in findings.take())
    return f"{recipe.__name__.replace('_', ' ')} ({scene.caller.answers - before} answers)", problems


if __name__ == "__main__":
    sys.exit(main())
