"""`natsproxy rules`: the group of commands that check rules, try them, and list what they may say."""

from __future__ import annotations

import click

from natsproxy.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    places={
        "check": "natsproxy.cli.rules_check:check",
        "cookbook": "natsproxy.cli.rules_cookbook:cookbook",
        "explain": "natsproxy.cli.rules_explain:explain",
        "from-capture": "natsproxy.cli.rules_from_capture:from_capture",
        "list": "natsproxy.cli.rules_list:list_words",
        "promote": "natsproxy.cli.rules_promote:promote",
        "test": "natsproxy.cli.rules_test:test",
    },
)
def rules() -> None:
    """Check rules files, try them on a frame or on recordings, list what they may say."""
