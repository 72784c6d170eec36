"""A trial as JSON values and back."""

from __future__ import annotations

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
