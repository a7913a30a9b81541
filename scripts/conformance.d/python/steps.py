"""Named steps, each reported on one line."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

# Timeout of a step: a step that takes this long is stuck and fails.
STEP_LIMIT = 60.0


@dataclass
class Step:
    title: str
    body: Callable[[], Awaitable[None]]
    needed: bool = False


async def run(label, steps):
    """Runs steps in order. After a `needed` one has failed, the others are reported as not reached."""
    stopped = None
    failures = 0
    for step in steps:
        problem = f'not reached, since "{stopped}" failed' if stopped else await attempt(step.body)
        if problem is None:
            print(f"ok {label}: {step.title}", flush=True)
        else:
            failures += 1
            print(f"FAILED {label}: {step.title}: {problem}", flush=True)
            if step.needed and stopped is None:
                stopped = step.title
    return failures


async def attempt(body):
    try:
        await asyncio.wait_for(body(), STEP_LIMIT)
    except TimeoutError:
        return f"not done after {STEP_LIMIT:.0f} s"
    except Exception as error:  # any exception is the step's failure
        text = str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
        return re.sub(r"\s*\n\s*", " ", text)[:600]
    return None


def same(actual, expected, what):
    """Fails with both values, which a plain `assert` does not print."""
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)
