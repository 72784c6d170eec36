"""Blocks as text: nats-server's configuration, commands of nsc, rules of natsproxy, JSON.

The same needs give the same text, whatever order they were read in.  An entry is followed by its evidence,
and choices are comments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from natsproxy.permissions.choices import PossibleNeed
from natsproxy.permissions.needs import ClientNeeds, Responses
from natsproxy.permissions.proof import PermissionProof
from natsproxy.permissions.templates import COUNTED, Evidence
from natsproxy.permissions.uses import By, Verb
from natsproxy.printable import printable
from natsproxy.protocol.errors import quote
from natsproxy.rules.file.serialize import to_toml
from natsproxy.units import SECOND, short_duration

UNNAMED: Final = "(unnamed)"
GLOBAL_ACCOUNT: Final = "$G"
_NKEY: Final = re.compile(r"U[A-Z2-7]{55}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Z0-9]+")


def shown_time(t: int) -> str:
    """Return a time (Unix ns) to the second, in UTC."""
    return f"{datetime.fromtimestamp(t // SECOND, UTC):%Y-%m-%dT%H:%M:%SZ}"


def distinct_text(evidence: Evidence) -> str:
    """Return the numbers of values of a line, `37` or `37 and 1000+`; "" for none."""
    return " and ".join(f"{count}{'+' if count >= COUNTED else ''}" for count in evidence.distinct)


def evidence_text(evidence: Evidence) -> str:
    """Return the evidence of a line for people: `214 frames, 37 values, 2026-01-01T00:00:00Z to ...`."""
    one = "" if evidence.distinct == (1,) else "s"
    counts = distinct_text(evidence)
    values = f", {counts} value{one}" if counts else ""
    first, last = shown_time(evidence.first), shown_time(evidence.last)
    when = first if first == last else f"{first} to {last}"
    denied = f", {evidence.denied} denied" if evidence.denied else ""
    return f"{evidence.frames} frame{'s' if evidence.frames != 1 else ''}{denied}{values}, {when}"


def responses_text(responses: Responses) -> str:
    """Return the evidence of `allow_responses`."""
    return f"{evidence_text(responses.evidence)}, the latest after {short_duration(responses.longest)}"


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"))


# -- nats-server


def server_text(needs: Iterable[ClientNeeds], by: By) -> str:
    """Return a configuration of nats-server."""
    if by == By.ACCOUNT:
        return _accounts_text(needs)
    lines = ["authorization: {", "  users: ["]
    for need in needs:
        lines += ["    {", *(f"      {line}" for line in _user(need)), "      permissions: {"]
        lines += [f"        {line}" for line in _map(need)]
        lines += ["      }", "    }"]
    return "\n".join([*lines, "  ]", "}", ""])


def _accounts_text(needs: Iterable[ClientNeeds]) -> str:
    """Return the default permissions of accounts; those of the global one stand outside of `accounts`."""
    named: list[str] = []
    lines: list[str] = []
    for need in needs:
        defaults = ["  default_permissions: {", *(f"    {line}" for line in _map(need)), "  }"]
        if need.label == GLOBAL_ACCOUNT:
            lines += ["authorization: {", *defaults, "}"]
        else:
            key = (need.label or UNNAMED).replace('"', "'")  # a key has no escapes
            named += [f'  "{key}": {{', *(f"  {line}" for line in defaults), "  }"]
    if named:
        lines += ["accounts: {", *named, "}"]
    return "\n".join([*lines, ""])


def _user(need: ClientNeeds) -> list[str]:
    if _NKEY.fullmatch(need.label):
        return [f"nkey: {need.label}"]
    # The server does not start until the variable is set: nobody gets in with an empty password.
    variable = _NOT_IN_NAMES.sub("_", (need.label or UNNAMED).upper()).strip("_")
    return [f"user: {_quoted(need.label or UNNAMED)}", f"password: ${variable}_PASSWORD"]


def permission_lines(permissions: dict[str, Any], remarks: Callable[[str, str], str]) -> Iterator[str]:
    """Yield a permission map in nats-server's configuration.

    remarks: maps a verb and an entry to the comment behind it.
    """
    for verb in Verb:
        for name, entries in permissions[verb].items():
            yield f"{verb}: {{"
            yield f"  {name}: ["
            for entry in entries:
                yield f"    {_quoted(entry)}{remarks(verb, entry)}"
            yield "  ]"
            yield "}"
    responses = permissions.get("allow_responses")
    if responses:
        yield (
            f'allow_responses: {{ max: {responses["max"]}, expires: "{responses["expires"]}" }}'
            f"{remarks('allow_responses', '')}"
        )


def _map(need: ClientNeeds) -> Iterator[str]:
    found = {(str(place.verb), str(place)): evidence_text(one) for place, one in need.lines.items()}
    if need.responses is not None:
        found["allow_responses", ""] = responses_text(need.responses)
    yield from permission_lines(
        need.permissions(), lambda verb, entry: f"  # {found.get((verb, entry), 'nothing was used')}"
    )
    yield from _choice_lines(need.choices)


def _choice_lines(found: list[PossibleNeed]) -> Iterator[str]:
    if found:
        yield "# The recording cannot tell whether these are needed; allow what is:"
    for one in found:
        yield f"#   {one.verb} {_quoted(str(one.place))}  # {one.reason}"


# -- nsc


def nsc_text(needs: Iterable[ClientNeeds], by: By) -> str:
    """Return commands of nsc: one for each user, or for the default permissions of each account."""
    return "\n".join(line for need in needs for line in _commands(need, by))


def _commands(need: ClientNeeds, by: By) -> Iterator[str]:
    kind = "account" if by == By.ACCOUNT else "user"
    options = [f"nsc edit {kind} --name {_word(need.label or UNNAMED)}"]
    permissions = need.permissions()
    for verb, flag in ((Verb.PUBLISH, "pub"), (Verb.SUBSCRIBE, "sub")):
        for name, entries in permissions[verb].items():
            options += [f"--{name}-{flag} {_word(entry)}" for entry in entries]
    if "allow_responses" in permissions:
        responses = permissions["allow_responses"]
        options.append(f"--allow-pub-response={responses['max']} --response-ttl {responses['expires']}")
    yield " \\\n  ".join(options)
    for place, evidence in need.lines.items():
        yield f"# {place.verb} {printable(str(place))}: {evidence_text(evidence)}"
    if need.responses is not None:
        yield f"# responses: {responses_text(need.responses)}"
    yield from _choice_lines(need.choices)
    yield ""


def _word(text: str) -> str:
    return shlex.quote(printable(text))


# -- rules


def rule_text(needs: Iterable[ClientNeeds], by: By) -> str:
    """Return rules of the kind `permissions`."""
    return "\n".join(part for need in needs for part in (*_comments(need), to_toml([_rule(need, by)])))


def _rule(need: ClientNeeds, by: By) -> dict[str, Any]:
    label = printable(need.label)
    # A client without the fact is known by its name (`Client.label`).
    known = all(getattr(client, by) == need.label for client in need.clients)
    client = {str(by) if known else "name": label}
    return {
        "name": f"permissions of {label or UNNAMED}",
        "kind": "permissions",
        "client": client,
        **need.permissions(),
    }


def _comments(need: ClientNeeds) -> Iterator[str]:
    for place, evidence in need.lines.items():
        yield f"# {place.verb} {printable(str(place))}: {evidence_text(evidence)}"
    if need.responses is not None:
        yield f"# responses: {responses_text(need.responses)}"
    yield from _choice_lines(need.choices)


# -- JSON


def json_text(needs: Iterable[ClientNeeds], by: By, proof: PermissionProof | None = None) -> str:
    """Return a JSON object: the permission map of each label, with evidence and choices."""
    found = [
        {
            str(by): need.label,
            "permissions": need.permissions(),
            "evidence": [
                {"verb": str(place.verb), "entry": str(place), **_facts(evidence)}
                for place, evidence in need.lines.items()
            ],
            "responses": None
            if need.responses is None
            else {
                **_facts(need.responses.evidence),
                "most": need.responses.most,
                "longest_seconds": round(need.responses.longest / SECOND, 6),
            },
            "choices": [
                {"verb": str(one.verb), "entry": str(one.place), "reason": one.reason} for one in need.choices
            ],
        }
        for need in needs
    ]
    proved = {} if proof is None else {"proof": proof.facts()}
    return json.dumps({"permissions": found, **proved}, indent=2) + "\n"


def _facts(evidence: Evidence) -> dict[str, Any]:
    return {
        "frames": evidence.frames,
        "denied": evidence.denied,
        "first": evidence.first,
        "last": evidence.last,
        "distinct": list(evidence.distinct),
    }


def _with_proof(write: Callable[[Iterable[ClientNeeds], By], str]) -> Write:
    """Return a writer that has the proof in comments."""

    def writer(needs: Iterable[ClientNeeds], by: By, proof: PermissionProof | None = None) -> str:
        lines = proof.texts() if proof is not None else ()
        return write(needs, by) + "".join(f"# {line}\n" for line in lines)

    return writer


Write = Callable[[Iterable[ClientNeeds], By, PermissionProof | None], str]
FORMATS: Final[dict[str, Write]] = {
    "nats": _with_proof(server_text),
    "nsc": _with_proof(nsc_text),
    "rule": _with_proof(rule_text),
    "json": json_text,
}
