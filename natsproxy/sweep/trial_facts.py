"""A trial as JSON values and back, and the name under which a folder remembers it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from natsproxy.sweep.values import Place, Position, Trial


def trial_facts(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON values."""
    place = {**trial.place._asdict(), "position": trial.place.position._asdict()}
    return {**trial._asdict(), "place": place, "rules": list(trial.rules)}


def trial_of(facts: Mapping[str, Any]) -> Trial:
    """Return a trial from its JSON values.  Raises KeyError or TypeError where they are none."""
    place = facts["place"]
    made = Place(**{**place, "position": Position(**place["position"])})
    return Trial(**{**facts, "place": made, "rules": tuple(facts["rules"])})


def trial_key(trial: Trial) -> str:
    """Return a name that is the same in each sweep of the program."""
    what = [trial.fault, trial.place.position, trial.rules, trial.restart, trial.depth, trial.after]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
