"""The receipt of a run against cassettes: a JSON file of what was served, and a summary line.

    receipt = Receipt("cassette run", command, exit_code=0, uses=(use,), ...)
    receipt.write(path)

It holds counts, names and hashes: no payload, no header, no subject beyond its template, no password.  It
imports little, as the pytest plugin loads it in every run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from natsproxy import __version__
from natsproxy.addresses import mask_addresses
from natsproxy.files import write_whole
from natsproxy.protocol.redaction import CONNECT_SECRETS, without_seeds
from natsproxy.units import parse_version

SCHEMA: Final = 1
"""The version of the file's form: a later one may lack members of this one."""
SUFFIX: Final = ".receipt.json"
SUBJECTS: Final = 100
"""The most subject templates in a receipt; the others are summed up in one."""
_KEPT: Final = 20  # failures of one cassette
_COUNTS: Final = ("served", "missed", "unused", "repeated", "learned")
_WORDS: Final = 100  # arguments of a program
_LETTERS: Final = 2000  # of one of them
_HIDDEN: Final = "***"
_NAMES: Final = (*CONNECT_SECRETS, "passwd", "passphrase", "secret", "key", "cred", "creds", "authorization")
_LONG: Final = tuple(name for name in (*_NAMES, "apikey") if len(name) > 4)
_VALUE: Final = r"""("[^"]*"|'[^']*'|[^\s"'&;|]+)"""
_FLAG: Final = re.compile(r"--?[\w-]+")
_FLAGGED: Final = re.compile(rf"(?<![\w-])(--?[\w-]+)(\s+)(?!-){_VALUE}")
_ASSIGNED: Final = re.compile(rf"""(?<![\w-])([\w-]+)(["']?\s*[=:]\s*){_VALUE}""")
_BEARER: Final = re.compile(r"\b(bearer|basic)(\s+)[^\s\"']+", re.IGNORECASE)
_JWT: Final = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")
_PROGRAM_FAILED: Final = "program"
_WE_FAILED: Final = "natsproxy"


@dataclass(frozen=True, slots=True)
class SubjectCount:
    """The client frames of one subject template, or of all those that are not listed.

    served: recorded, and sent by a client.  missed: sent, but never recorded.  unused: recorded, but sent by
    no client.  repeated: polls beyond the recorded ones, which got an earlier answer again.
    """

    subject: str
    served: int = 0
    missed: int = 0
    unused: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class CassetteUsed:
    """One use of a cassette, by a run or by a test.

    runs: the number of uses that this is the sum of, if the cassette was played several times.

    mode, strict, options: those in force; the mode of `replay to-client` is its `--unrecorded`.  played: it
    was played, not recorded.  sha256: of the file as it was played, or after it was recorded; changed: the
    file has changed since it was played.  recorded_by: the natsproxy versions of its recorders.

    connections, recorded: the connections and client frames in the capture; whole: all were counted.
    exempt: recorded frames that were not sent and are not required.  clients: the number that connected;
    left_behind: those still connected when the program had ended.  undelivered: answers whose client had
    disconnected.  added: frames that were added to the cassette.  reached_server: a frame went to a real
    server.
    """

    path: str
    mode: str = "none"
    strict: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    played: bool = True
    sha256: str = ""
    changed: bool = False
    recorded_by: tuple[str, ...] = ()
    connections: int = 0
    recorded: int = 0
    whole: bool = True
    exempt: int = 0
    clients: int = 0
    left_behind: int = 0
    undelivered: int = 0
    learned: int = 0
    added: int = 0
    reached_server: bool = False
    served: int = 0
    missed: int = 0
    unused: int = 0
    repeated: int = 0
    subjects: tuple[SubjectCount, ...] = ()
    test: str = ""
    passed: bool | None = None
    runs: int = 1
    failures: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """Sentences about what is no failure, but worth knowing."""
        found = []
        if self.played and not self.connections:
            found.append(f"{self.path} is empty: no client had connected while it was recorded")
        newer = [one for one in self.recorded_by if parse_version(one) > parse_version(__version__)]
        if newer:
            found.append(
                f"{self.path} was recorded by natsproxy {newer[0]}, which is newer than this {__version__}: "
                "upgrade natsproxy, if it does not play"
            )
        if self.left_behind and not self.test:
            found.append(
                f"{self.left_behind} clients were still connected when the program had ended: a process that "
                "it left behind, whose later frames nobody judges"
            )
        return found


def joined(one: CassetteUsed, other: CassetteUsed) -> CassetteUsed:
    """Return the sum of two uses of one cassette, with the settings of the later one."""
    sums = {
        name: getattr(one, name) + getattr(other, name)
        for name in (*_COUNTS, "recorded", "exempt", "clients", "left_behind", "undelivered", "added", "runs")
    }
    subjects: dict[str, SubjectCount] = {}
    for count in (*one.subjects, *other.subjects):
        key = count.subject if count.subject in subjects or len(subjects) < SUBJECTS else ""
        known = subjects.get(key, SubjectCount(key))
        numbers = {name: getattr(known, name) + getattr(count, name) for name in _COUNTS[:4]}
        subjects[key] = SubjectCount(key, **numbers)
    return replace(
        other,
        **sums,
        changed=one.changed or other.changed,
        whole=one.whole and other.whole,
        played=one.played and other.played,
        reached_server=one.reached_server or other.reached_server,
        passed=bool(one.passed and other.passed),
        failures=(*one.failures, *other.failures)[:_KEPT],
        subjects=tuple(subjects.values()),
    )


@dataclass(frozen=True, slots=True)
class Minimum:
    """The least that a run must be served, in exchanges and in percent of the recordings, not to fail."""

    served: int | None = None
    coverage: float | None = None

    def __bool__(self) -> bool:
        return self.served is not None or self.coverage is not None

    def unmet(self, uses: Sequence[CassetteUsed]) -> list[str]:
        """Return a sentence for each minimum that a run has not reached; none for a run that recorded."""
        if any(not use.played for use in uses):
            return []
        served, reached, found = sum(use.served for use in uses), coverage(uses), []
        if self.served is not None and served < self.served:
            found.append(f"{served} recorded exchanges were served, --min-served requires {self.served}")
        if self.coverage is not None and (reached is None or reached < self.coverage):
            part = "nothing" if reached is None else f"only {reached:g} %"
            found.append(
                f"{part} of the recorded exchanges was served, --min-coverage requires {self.coverage:g} %"
            )
        return found


def coverage(uses: Iterable[CassetteUsed]) -> float | None:
    """Return the percentage of recorded exchanges that were served; exempt ones do not count.

    None if there are none, or if a recording was not counted to its end.
    """
    played = [use for use in uses if use.played]
    due = sum(use.served + use.unused for use in played)
    if not due or not all(use.whole for use in played):
        return None
    # Rounded down: 9,999 of 10,000 are not 100 %.
    return sum(use.served for use in played) * 10_000 // due / 100


@dataclass(frozen=True, slots=True)
class Receipt:
    """A run and its results.

    ran: the natsproxy command, or pytest.  program: its command line, None without one.  exit_code: that of
    the program, None if it was stopped.  failures: sentences that say why natsproxy failed the run.  code:
    the exit code of the run.  began: seconds since 1970.  more: members added by the command.  real_server:
    the run also used one.
    """

    ran: str
    began: float
    seconds: float
    uses: tuple[CassetteUsed, ...] = ()
    program: Sequence[str] | None = None
    exit_code: int | None = None
    failures: Sequence[str] = ()
    code: int = 0
    real_server: bool = False
    minimum: Minimum = field(default_factory=Minimum)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed_by(self) -> str | None:
        """Return what failed the run: "program", "natsproxy", or None."""
        if self.exit_code or (self.code and not self.failures):
            return _PROGRAM_FAILED
        return _WE_FAILED if self.failures else None

    @property
    def isolated(self) -> bool:
        """True if nothing reached a real server, and at least one recorded exchange was served."""
        alone = not self.real_server and all(use.played and not use.reached_server for use in self.uses)
        return alone and any(use.served for use in self.uses)

    @property
    def warnings(self) -> list[str]:
        """Sentences about what is no failure, but worth knowing."""
        return [warning for use in self.uses for warning in use.warnings]

    def line(self) -> str:
        """Return the receipt in one line."""
        played = [use for use in self.uses if use.played]
        sums = {name: sum(getattr(use, name) for use in played) for name in ("served", "recorded", "exempt")}
        parts = [f"{sums['served']:,} of {sums['recorded'] - sums['exempt']:,} recorded exchanges served"]
        for name in ("missed", "unused", "repeated"):
            count = sum(getattr(use, name) for use in played)
            parts += [f"{count:,} {name}"] if count else []
        parts = parts if played else []
        if "replay" in self.more:
            parts += [f"{self.more['replay'][name]:,} {name}" for name in ("frames", "received", "missing")]
        if len(played) < len(self.uses):
            kept = sum(bool(use.sha256) for use in self.uses) - len(played)
            parts.append(f"{kept or 'no'} cassette{'' if kept == 1 else 's'} recorded")
        parts = parts or ["nothing was played"]
        parts.append("isolated" if self.isolated else "not isolated")
        return ", ".join(parts)

    def facts(self) -> dict[str, Any]:
        """Return the receipt as JSON values."""
        played = [use for use in self.uses if use.played]
        return {
            "receipt": SCHEMA,
            "natsproxy": __version__,
            "ran": self.ran,
            "program": None if self.program is None else masked(self.program),
            "program_exit_code": self.exit_code,
            "exit_code": self.code,
            "failed_by": self.failed_by,
            "failures": list(self.failures),
            "warnings": self.warnings,
            "began": datetime.fromtimestamp(self.began, UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self.seconds, 3),
            "isolated": self.isolated,
            "coverage": coverage(self.uses),
            **{name: sum(getattr(use, name) for use in played) for name in _COUNTS},
            **{f"min_{name}": value for name, value in asdict(self.minimum).items()},
            **self.more,
            "cassettes": [asdict(use) for use in self.uses],
        }

    def write(self, path: Path) -> None:
        """Write it as a whole.  Raises OSError."""
        write_whole(path, json.dumps(self.facts(), indent=1) + "\n")


def use_of(facts: Mapping[str, Any]) -> CassetteUsed:
    """Return the use of which `asdict` made these JSON values."""
    known = {one.name for one in fields(CassetteUsed)}
    given = {key: value for key, value in facts.items() if key in known}
    subjects = tuple(SubjectCount(**one) for one in facts["subjects"])
    texts = {key: tuple(facts[key]) for key in ("recorded_by", "failures")}
    return CassetteUsed(**{**given, **texts, "subjects": subjects})


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with secrets masked, as far as they can be recognised.

    These are passwords in URLs, nkey seeds, JWTs, and values of options, variables and headers with the name
    of a secret (`--password x`, `TOKEN=x`, `Authorization: Bearer x`).
    """
    made: list[str] = []
    hide = False
    for word in words[:_WORDS]:
        text = _JWT.sub(_HIDDEN, without_seeds(mask_addresses(word[:_LETTERS])))
        text = _BEARER.sub(rf"\1\2{_HIDDEN}", text)
        for named in (_FLAGGED, _ASSIGNED):
            text = named.sub(_hidden, text)
        made.append(_HIDDEN if hide and not word.startswith("-") else text)
        hide = _FLAG.fullmatch(word) is not None and _names_secret(word)
    return made


def _hidden(found: re.Match[str]) -> str:
    return found[1] + found[2] + (_HIDDEN if _names_secret(found[1]) else found[3])


def _names_secret(name: str) -> bool:
    """Return whether an option, variable or member of this name holds a secret."""
    plain = name.lower().replace("-", "_")
    return plain.endswith(_LONG) or plain.rpartition("_")[2] in _NAMES
