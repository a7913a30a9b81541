"""Deviations from the description, and which of them are intended."""

import fnmatch
import json
import re
from collections import Counter
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Finding:
    """One deviation. `kind` is `status`, `body`, `undocumented` or `header`."""

    route: str
    status: int
    kind: str
    at: str
    message: str

    def __str__(self):
        return f"{self.route} -> {self.status} {self.kind} {self.at}: {self.message}"


class AllowList:
    """The intended deviations: a JSON list of objects with a glob for each of `GLOBS`, and a `reason`."""

    GLOBS = ("route", "status", "kind", "at", "message")

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.entries = json.load(file)
        self.used = [0] * len(self.entries)
        for entry in self.entries:
            missing = {*self.GLOBS, "reason"} - set(entry)
            if missing or not entry["reason"].strip():
                raise ValueError(f"{path}: an entry lacks {', '.join(sorted(missing)) or 'its reason'}: {entry}")

    def covers(self, finding):
        for index, entry in enumerate(self.entries):
            if all(_fits(str(getattr(finding, name)), entry[name]) for name in self.GLOBS):
                self.used[index] += 1
                return True
        return False

    def unused(self):
        return [entry for entry, used in zip(self.entries, self.used, strict=True) if not used]


def _fits(value, glob):
    """Returns whether a glob matches. Paths contain `[0]`, which `fnmatch` would read as a set of characters."""
    return fnmatch.fnmatchcase(value, glob.replace("[", "[[]"))


class Findings:
    """Collects deviations that are not allowed, each once, with its count."""

    def __init__(self, allow_list):
        self.allow_list = allow_list
        self.seen = Counter()

    def add(self, finding):
        if not self.allow_list.covers(finding):
            # All entries of a list deviate in the same way.
            self.seen[replace(finding, at=re.sub(r"\[\d+\]", "[]", finding.at))] += 1

    def take(self):
        """Returns the new deviations since the last call, most frequent first."""
        found, self.seen = self.seen, Counter()
        return [(str(finding), times) for finding, times in found.most_common()]
