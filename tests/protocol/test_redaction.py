"""What may be written to a disk or a log."""

from __future__ import annotations

import json

import pytest

from natsproxy.protocol import redaction

SEED = "SU" + "A" * 56


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"a":1, "x":"s" }', b'{"a":1, "x":"[withheld: secret]" }'),
        (b'{"X": "s","x":"t"}', b'{"X": "[withheld: secret]","x":"[withheld: secret]"}'),
        (b'{"\\u0078":"s"}', b'{"\\u0078":"[withheld: secret]"}'),
        (b'{"a":[{"x":{"x":1,"y":[2]}}],"b":"\xff"}', b'{"a":[{"x":"[withheld: secret]"}],"b":"\xff"}'),
        (b'{"x":"","a":{"x":null}}', b'{"x":"","a":{"x":null}}'),
        (b'{"a":"x","b":["x"]}', b'{"a":"x","b":["x"]}'),
        (b"null", b"null"),
    ],
)
def test_redact_object(raw: bytes, expected: bytes) -> None:
    """The values of secret keys go, every other byte stays, and the result is JSON."""
    assert redaction.redact_object(raw, frozenset({"x"})) == expected
    json.loads(expected.decode("utf-8", "replace"))


@pytest.mark.parametrize("key", ["\u017feed", "to\u212aen", "TOKEN", "to\\u212aen", "\\u017feed"])
def test_keys_that_fold_to_a_secret_one(key: str) -> None:
    """Go's decoder takes them for the field, so they hold a secret."""
    raw = b'{"%b":"s"}' % key.encode()
    redacted = redaction.redact_object(raw, redaction.CONNECT_SECRETS)
    assert redacted == raw.replace(b'"s"', b'"[withheld: secret]"')


@pytest.mark.parametrize("raw", [b'"x"', b"[1]", b"{", b"", b'{"x":1} y'])
def test_a_text_that_is_no_object_is_not_redacted_in_part(raw: bytes) -> None:
    """The caller withholds what does not parse."""
    assert redaction.redact_object(raw, frozenset({"x"})) is None


def test_seeds_go_wherever_they_stand() -> None:
    """A seed is withheld under any key, escaped or not."""
    raw = json.dumps({"name": f"see {SEED}", "l": [SEED]}).encode().replace(b"SUA", b"\\u0053UA")
    redacted = redaction.redact_object(raw, frozenset())
    assert json.loads(redacted or b"") == {"name": "[withheld: seed]", "l": ["[withheld: seed]"]}
