"""JSON schemas of the API's bodies, parameters and answers, and validation of a value against one.

The supported subset: type, enum, properties, required, additionalProperties (False), items, minimum,
maximum, minLength, maxLength, pattern, maxItems, and $ref to a named shape.  So the document and the checks
cannot drift.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

Schema = Mapping[str, Any]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_NAMES: Final = {"object": "an object", "array": "a list", "string": "a text", "integer": "a whole number"}
_NAMES_MORE: Final = {"number": "a number", "boolean": "true or false", "null": "null"}


def fields(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def items(of: Schema, most: int | None = None) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": of} | ({} if most is None else {"maxItems": most})


def shape(name: str) -> Schema:
    """Return the reference to a named shape of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def text(description: str, *, most: int | None = None, null: bool = False, **more: Any) -> Schema:
    """Return the schema of a text."""
    limits: dict[str, Any] = {} if most is None else {"maxLength": most}
    return {"type": ["string", "null"] if null else "string", "description": description, **limits, **more}


def whole(description: str, *, least: int | None = 0, most: int | None = None, null: bool = False) -> Schema:
    """Return the schema of a whole number."""
    limits = {"minimum": least, "maximum": most}
    kind = ["integer", "null"] if null else "integer"
    return {"type": kind, "description": description} | {k: v for k, v in limits.items() if v is not None}


def flag(description: str) -> Schema:
    """Return the schema of true or false."""
    return {"type": "boolean", "description": description}


def any_object(description: str) -> Schema:
    """Return the schema of an object whose fields are documented elsewhere."""
    return {"type": "object", "description": description}


def check(value: Any, schema: Schema, shapes: Mapping[str, Schema], where: str = "the body") -> None:
    """Raise ValueError with a sentence where a value is not as its schema says."""
    if "$ref" in schema:
        schema = shapes[schema["$ref"].rpartition("/")[2]]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        names = " or ".join((_NAMES | _NAMES_MORE)[kind] for kind in kinds)
        raise ValueError(f"{where} must be {names}, not {_short(value)}")
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"{where} must be one of {', '.join(map(str, schema['enum']))}, not {_short(value)}")
    if isinstance(value, str):
        _within(len(value), schema, "minLength", "maxLength", f"the length of {where}")
        if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
            raise ValueError(f"{where} must match {schema['pattern']}, not {_short(value)}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _within(value, schema, "minimum", "maximum", where)
    elif isinstance(value, dict):
        _check_fields(value, schema, shapes, where)
    elif isinstance(value, list):
        _within(len(value), schema, "minItems", "maxItems", f"the length of {where}")
        for index, item in enumerate(value):
            check(item, schema.get("items", {}), shapes, f"item {index + 1} of {where}")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _within(value: float, schema: Schema, least: str, most: str, where: str) -> None:
    if least in schema and value < schema[least]:
        raise ValueError(f"{where} must be at least {schema[least]}, not {value}")
    if most in schema and value > schema[most]:
        raise ValueError(f"{where} must be at most {schema[most]}, not {_short(value)}")


def _check_fields(value: dict[str, Any], schema: Schema, shapes: Mapping[str, Schema], where: str) -> None:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise ValueError(f"{where} needs {name!r}")
    for name, item in value.items():
        if name in known:
            check(item, known[name], shapes, repr(name))
        elif schema.get("additionalProperties", True) is False:
            raise ValueError(f"{where} has {_short(name)}: {unknown(name, list(known))}")


def unknown(name: str, known: list[str]) -> str:
    """Return the hint for an unknown name: the nearest known one, else all of them."""
    near = get_close_matches(name, known, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known)) or 'none'}"


def _short(value: Any) -> str:
    written = repr(value) if not isinstance(value, dict | list) else type(value).__name__
    return written if len(written) <= 80 else written[:80] + "..."
