"""Programs recorded with one version of nats-server and played to another: every difference has its reason.

`CHANGES` is the list.  Most of them leave out what changed, as a person who rehearses an upgrade does with
options; what cannot be left out is named by subject and status.  A recording that is played to its own
version differs in nothing, and no row may be idle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.replay.client_playback.replay_job import ReplayJob, ReplayOptions
from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.report import DiffRow
from tests.kit.servers import VERSIONS, NatsServer, executable
from tests.replay.kit import PROGRAMS, recording, run_program

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
LIMIT = 60.0  # seconds for one replay


@dataclass(frozen=True)
class Change:
    """A difference between a version and those before it.

    since: the first version that has it.  ignore: places to leave out; or
    subject, before and after: the status of an answer to it.
    """

    since: str
    why: str
    ignore: tuple[str, ...] = ()
    subject: str = ""
    before: str = ""
    after: str = ""

    def between(self, ours: str, theirs: str) -> bool:
        """Tell whether it lies between two versions."""
        return (
            _number(min(ours, theirs, key=_number))
            < _number(self.since)
            <= _number(max(ours, theirs, key=_number))
        )

    def explains(self, row: DiffRow) -> bool:
        """Tell whether a row differs in that status and in nothing else."""
        if not self.subject or not fnmatchcase(row.group, f"{self.subject} (answer)"):
            return False
        gone = Counter(row.recorded.statuses) - Counter(row.observed.statuses)
        come = Counter(row.observed.statuses) - Counter(row.recorded.statuses)
        counted = gone.total() == row.missing and come.total() == row.added
        return counted and {*gone, *come} == {self.before, self.after}


CHANGES = (
    Change("2.12", "the answer that nobody is there names the subject (2.12.0)", ("header:Nats-Subject",)),
    Change("2.12", "messages with a time to live (2.11.0)", ("/config/allow_msg_ttl",)),
    Change(
        "2.12",
        "metadata of streams and consumers say _nats.ver, _nats.level, _nats.req.level (2.11.0)",
        ("/config/metadata", "/consumers/*/config/metadata"),
    ),
    Change("2.12", "the configuration of a durable says its name too", ("/config/name",)),
    Change("2.12", "the account's answer says the level of the API (2.11.0)", ("/api/level",)),
    Change("2.12", "nothing reserved is no longer -1 without its sign", ("/reserved_storage",)),
    Change(
        "2.12",
        "a pull that does not wait ends with 404 (2.14.0, and in 2.12 before 2.12.8)",
        subject="$JS.API.CONSUMER.MSG.NEXT.*",
        before="408 Request Timeout",
        after="404 No Messages",
    ),
    Change("2.15", "the level of the API is another one", ("/api/level",)),
    Change(
        "2.15",
        "the version and the level in metadata are others",
        ("/config/metadata/_nats.ver", "/config/metadata/_nats.level"),
    ),
)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


async def _record(name: str, version: str, capture: Path) -> None:
    with NatsServer(jetstream=True, executable=executable(version)) as server:
        async with recording(capture, Address("127.0.0.1", server.port)) as url:
            assert await run_program(PROGRAMS / f"{name}.py", url)


async def _play(capture: Path, version: str, observed: Path) -> None:
    with NatsServer(jetstream=True, executable=executable(version)) as server:
        job = ReplayJob(capture, ReplayOptions(speed=None), observed)
        with trio.fail_after(LIMIT):
            await job.run(Address("127.0.0.1", server.port))
    assert [str(missing) for missing in job.missing] == []


def _differing(recorded: Path, observed: Path, changes: list[Change]) -> list[DiffRow]:
    """Return the rows of the report that these changes do not explain."""
    places = [text for change in changes for text in change.ignore]
    options = {
        "ignore_json": [one for one in places if one.startswith("/")],
        "ignore_headers": [one.removeprefix("header:") for one in places if one.startswith("header:")],
    }
    report = compare(recorded, observed, MatchOptions(**read(options)))
    return [row for row in report.rows if not row.same and not any(c.explains(row) for c in changes)]


@pytest.fixture(scope="module")
def used() -> dict[str, set[Change]]:
    """Return the changes that each program was the first to meet."""
    return {}


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
async def test_differences_between_versions_are_known(
    name: str, tmp_path: Path, used: dict[str, set[Change]]
) -> None:
    for version in VERSIONS:
        await _record(name, version, tmp_path / f"{version}.ncap")
    met = used[name] = set()
    for ours, theirs in product(VERSIONS, repeat=2):
        recorded, observed = tmp_path / f"{ours}.ncap", tmp_path / f"{ours}-{theirs}.ncap"
        await _play(recorded, theirs, observed)
        changes = [change for change in CHANGES if change.between(ours, theirs)]
        assert [(row.group, row.sample) for row in _differing(recorded, observed, changes)] == []
        for change in set(changes).difference(*used.values()):
            if _differing(recorded, observed, [other for other in changes if other is not change]):
                met.add(change)


@pytest.mark.server
@pytest.mark.long
def test_no_change_is_listed_in_vain(used: dict[str, set[Change]]) -> None:
    if used.keys() != set(NAMES):
        pytest.skip("only all programs together meet every change")
    assert set(CHANGES).difference(*used.values()) == set()
