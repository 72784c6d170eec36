"""Rules files as arguments of commands: a name, or `-` for standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from natsproxy.config.files import read_text, rules_in
from natsproxy.errors import ConfigError
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.model.rule import Rule


def rules_text(file: Path) -> tuple[str, Path]:
    """Return the text of a file (standard input for `-`) and its name for error messages."""
    if file != Path("-"):
        return read_text(file, "rules"), file
    try:
        return (sys.stdin.buffer.read().decode() if sys.stdin is not None else ""), Path("standard input")
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input: not valid TOML: {error}") from None


def load_rules(file: Path) -> tuple[Rule, ...]:
    """Return the rules of a file, checked one by one and together.  Raises ConfigError."""
    return RuleChain(rules_in(*rules_text(file))).rules
