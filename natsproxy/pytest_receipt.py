"""The receipt of a pytest session: a row for each test with a cassette, from all worker processes.

Light, as the plugin is.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from natsproxy.pytest_settings import RECEIPT, PluginSettings
from natsproxy.replay.receipt import CassetteUsed, Minimum, Receipt, use_of

FAILED: Final = 1
"""The exit status of a session with failed tests."""
_LISTED: Final = 1000  # failures; each row has its own


class SessionReceipt:
    """Collects the uses of cassettes, and writes them down at the end."""

    def __init__(self, given: PluginSettings, root: Path, arguments: Sequence[str]) -> None:
        self.warnings: list[str] = []
        self.failures: list[str] = []
        self.line = ""
        self._given = given
        self._root = root
        self._arguments = arguments
        self._minimum = Minimum(given.min_served, given.min_coverage)
        self._began = time.time()
        self._uses: dict[str, CassetteUsed] = {}
        self._real_server = False

    def add(self, nodeid: str, notes: Mapping[str, Any]) -> None:
        """Take what a test has noted; of one that ran again, its last run counts."""
        self._real_server |= "real_server" in notes
        if "use" in notes:
            use = use_of(notes["use"])
            path = Path(use.path)
            shown = path.relative_to(self._root) if path.is_relative_to(self._root) else path
            self._uses[nodeid] = replace(use, path=str(shown), test=nodeid)

    def finish(self, status: int) -> int:
        """Write the receipt of a session that used cassettes; return its exit status."""
        if not (self._uses or self._minimum):
            return status
        uses = tuple(self._uses[nodeid] for nodeid in sorted(self._uses))
        unmet = [one.replace("--min", "--nats-min") for one in self._minimum.unmet(uses)]
        self.failures = unmet
        of_tests = [f"{use.test}: {text}" for use in uses for text in use.failures]
        code = status or (FAILED if unmet else 0)
        receipt = Receipt(
            "pytest",
            self._began,
            time.time() - self._began,
            uses=uses,
            program=["pytest", *self._arguments],
            failures=[*unmet, *of_tests[:_LISTED]],
            code=code,
            real_server=self._real_server,
            minimum=self._minimum,
            more={"shared": _shared(uses)},
        )
        self.warnings = [*receipt.warnings, *_recorded_twice(uses)]
        self.line = f"receipt: {receipt.line()}"
        return self._write(receipt, code) if self._given.receipt else code

    def _write(self, receipt: Receipt, code: int) -> int:
        """Write it; a file that was asked for, and cannot be written, fails the session."""
        path = self._root / self._given.receipt
        try:
            receipt.write(path)
        except OSError as error:
            problem = f"cannot write the receipt {path}: {error.strerror}"
            if self._given.receipt == RECEIPT:
                self.warnings.append(f"{problem} (--nats-no-receipt, or --nats-receipt FILE elsewhere)")
                return code
            self.failures.append(problem)
            return code or FAILED
        self.line += f" ({self._given.receipt})"
        return code


def _shared(uses: Sequence[CassetteUsed]) -> dict[str, list[str]]:
    """Return the tests of each cassette that several have used."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for use in uses:
        tests[use.path].append(use.test)
    return {path: found for path, found in tests.items() if len(found) > 1}


def _recorded_twice(uses: Sequence[CassetteUsed]) -> list[str]:
    recorded = [use for use in uses if not use.played and use.sha256]
    return [
        f"{path} was recorded by {len(tests)} tests, and has the last recording alone: give each its own"
        for path, tests in _shared(recorded).items()
    ]
