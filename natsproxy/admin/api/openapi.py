"""The OpenAPI document, generated from the same rows as the routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from natsproxy import __version__
from natsproxy.admin.api.operation import REPEATED, Operation, Param
from natsproxy.admin.api.schema import Schema, items, shape

_PARTS: Final = {
    "proxy": "The name of a proxy; that of `natsproxy run` is main.",
    "conn": "The number of a connection.",
    "rule": "The name of a rule.",
    "segment": "The name of a segment, slashes as %2F.",
}
_MEANINGS: Final = {
    400: "The request is not as described here.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site, or the token may only read.",
    404: "There is nothing of that name.",
    409: "It cannot be done now.",
    412: "Somebody has changed it meanwhile.",
    413: "The body is too large.",
    421: "The Host is not one of this server's.",
    422: "The proxy refuses the rule or the setting; the sentence says why.",
    428: "If-Match is needed.",
    429: "There are too many viewers.",
    503: "Clients are not served now.",
}


def document(operations: Iterable[Operation], shapes: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = paths.setdefault(operation.path, {})
        path[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "natsproxy admin API",
            "version": __version__,
            "description": 'Errors are {"error": "a sentence"}.  Times are Unix time; *_ns are nanoseconds.',
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(shapes),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    parts = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARTS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in operation.parts
    ]
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "parameters": parts + [_param(param) for param in operation.params],
        "responses": _responses(operation),
    }
    if operation.open:
        made["security"] = []
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        made["requestBody"] = {"required": operation.body_needed, "content": content}
    return made


def _param(param: Param) -> dict[str, Any]:
    schema = {key: value for key, value in param.schema.items() if key != "description"}
    if param.default is not None:
        schema["default"] = param.default
    if param.many:
        schema = dict(items(schema, REPEATED))
    return {
        "name": param.name,
        "in": "header" if param.header else "query",
        "description": param.schema.get("description", ""),
        "schema": schema,
    }


def _responses(operation: Operation) -> dict[str, Any]:
    statuses = {operation.status: "Done.", 400: _MEANINGS[400], 421: _MEANINGS[421], 403: _MEANINGS[403]}
    if not operation.open:
        statuses[401] = _MEANINGS[401]
    if operation.body is not None:
        statuses[413] = _MEANINGS[413]
    if operation.parts:
        statuses[404] = _MEANINGS[404]
    statuses |= {status: _MEANINGS.get(status, "Done.") for status in operation.more}
    return {str(status): _response(operation, status, words) for status, words in sorted(statuses.items())}


def _response(operation: Operation, status: int, words: str) -> dict[str, Any]:
    made: dict[str, Any] = {"description": words}
    if status < 300 or (status == 503 and operation.open):
        answer = operation.answer
        if isinstance(answer, str):
            made["content"] = {answer: {"schema": {"type": "string"}}}
        elif answer is not None:
            made["content"] = {"application/json": {"schema": answer}}
    else:
        made["content"] = {"application/json": {"schema": shape("Error")}}
    return made


def starlette_path(path: str) -> str:
    """Return the path of a route: the last part may hold slashes."""
    return re.sub(r"{(rule|segment)}$", r"{\1:path}", path)
