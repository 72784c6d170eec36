"""The cause of a failure: the same in all trials that fail for one reason.

`cause_of(trial, judgement, run)` is verdict, kind of fault, what the fault hit, and where the program is
then: the place in its stack, or, where no stack tells, the state of the conversation.  A cause has a stable
name, which serves as a file name and in the file of accepted findings.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from natsproxy.sweep.positions import PARTS
from natsproxy.sweep.stack_place import stack_place
from natsproxy.sweep.values import Judgement, ProgramRun, Trial, Verdict

_LONGEST: Final = 80


class FailureCause(NamedTuple):
    """The facts that trials have in common which fail for one reason.

    fault: without its variant.  what: role or op.  of: what it is about, for people.  place: the innermost
    call of the stack.  state: of the conversation, "" where there is a stack.
    """

    verdict: Verdict
    fault: str
    what: str
    of: str = ""
    place: str = ""
    state: str = ""

    @property
    def name(self) -> str:
        """The stable name, `hung-drop-publish-ack-of-orders`: letters, digits, `.`, `_` and `-`."""
        about = "of " + self.of.replace("*", "any").replace(">", "all") if self.of else ""
        where = f"in {self.place.partition(' (')[0]}" if self.place else ""
        words = " ".join((self.fault, self.what, about, where))
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.verdict.value} {words}").strip("-.")
        if self.state or len(plain) > _LONGEST or _is_odd(self.of):
            digest = hashlib.sha256(repr((words, self.place, self.state)).encode()).hexdigest()[:4]
            return f"{plain[:_LONGEST].rstrip('-.')}-{digest}"
        return plain


def _is_odd(text: str) -> bool:
    """Tell whether a text has characters that a name cannot show."""
    return re.search(r"[^A-Za-z0-9._ /*>-]", text) is not None


@dataclass(slots=True, eq=False)
class Judged:
    """A trial that was tried.

    run: its first run, or once it is confirmed, the one of its runs that says most.  runs: the number of all
    its runs, same: of those with the verdict.  confirmed: it was repeated, and did the same each time.
    cause: of a finding.  failed: the number of runs that failed, once it was repeated.
    """

    trial: Trial
    judgement: Judgement
    run: ProgramRun
    runs: int = 1
    same: int = 1
    confirmed: bool = False
    cause: FailureCause | None = None
    failed: int = 0


def cause_of(trial: Trial, judgement: Judgement, run: ProgramRun) -> FailureCause:
    """Return the cause of a failure."""
    position = trial.place.position
    place = stack_place(run.stack)
    return FailureCause(
        judgement.verdict,
        trial.fault.partition("-")[0],
        position.what,
        trial.place.of or position.subject,
        place,
        "" if place else _state(trial.place.state),
    )


def _state(words: str) -> str:
    first, _, rest = words.partition(", ")
    return rest if first in PARTS else words
