"""Endpoints for the page: a link that opens it, and the keywords of rules, from which it builds its form.

Other programs use both as well: `natsproxy ctl page` prints the link.
"""

from __future__ import annotations

import tomllib
from typing import Any, Final

from natsproxy.admin.api.operation import ApiRequest, Operation
from natsproxy.admin.api.schema import any_object, fields, flag, items, shape, text, whole
from natsproxy.admin.page.app import LOGIN
from natsproxy.admin.page.sessions import LINK, Sessions
from natsproxy.rules.words import SECTIONS

_NAMED: Final = {"name": text("The word."), "text": text("Its meaning.")}
_DEFAULT: Final = {"type": ["string", "integer", "boolean"], "description": "Its default; absent for none."}
_WORD: Final = fields(
    {**_NAMED, "sort": text("Its sort: kind, selector, gate, role, identity.")},
    {
        "settings": items(
            fields(_NAMED, {"required": flag("Every rule of the kind has it."), "default": _DEFAULT})
        ),
        "required": flag("Every rule has it."),
        "default": _DEFAULT,
        "also": items(text("A further key that rules of the kind may have.")),
        "values": items(fields(_NAMED)),
        "example": text("In TOML."),
        "rule": any_object("The first rule of the example."),
    },
)
SHAPES: Final = {
    "PageLink": fields(
        {
            "path": text("The link, without the host."),
            "seconds": whole("The time in which it is good, once."),
        }
    ),
    "Caller": fields(
        {
            "name": text("The name of the token; admin where none is needed."),
            "changes": flag("They may change something; else they may read."),
        }
    ),
    "Words": fields({section: items(_WORD) for section in SECTIONS}),
}


async def _caller(call: ApiRequest) -> dict[str, Any]:
    return {"name": call.caller.name, "changes": call.caller.changes}


async def _words(_: ApiRequest) -> dict[str, Any]:
    return {section: list(map(_with_rule, words)) for section, words in SECTIONS.items()}


def _with_rule(word: Any) -> Any:
    if word["sort"] != "kind":
        return word
    return {**word, "rule": tomllib.loads(word["example"])["rules"][0]}


def operations(sessions: Sessions) -> tuple[Operation, ...]:
    """Return the operations.  sessions: where a link makes one."""

    async def link(call: ApiRequest) -> dict[str, Any]:
        return {"path": f"{LOGIN}?{sessions.link(call.caller)}", "seconds": int(LINK)}

    return (
        Operation(
            "POST",
            "/v1/page-links",
            "makePageLink",
            "Make a link that opens the page in a browser, without the token.",
            link,
            shape("PageLink"),
            status=201,
            changes=False,
        ),
        Operation(
            "GET",
            "/v1/caller",
            "getCaller",
            "Who asks, by the token, and what they may do.",
            _caller,
            shape("Caller"),
        ),
        Operation(
            "GET",
            "/v1/words",
            "listWords",
            "The words of rules, as natsproxy rules list shows them.",
            _words,
            shape("Words"),
        ),
    )
