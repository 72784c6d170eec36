"""An operation of the admin API: one row from which its route, its checks and its OpenAPI entry are made."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from natsproxy.admin.api.schema import Schema, check, unknown
from natsproxy.admin.guard import CALLER
from natsproxy.admin.managed import ManagedProxy
from natsproxy.config.admin import Caller
from natsproxy.errors import CaptureError, ConfigError
from natsproxy.events import Notice
from natsproxy.net.clock import now_ns
from natsproxy.net.rule_book import StaleRules

MOST_BODY: Final = 256 * 1024
"""The most bytes of a request's body: parsing that much JSON holds the loop for a millisecond."""
_TOO_LARGE: Final = f"the body has more than {MOST_BODY} bytes"

REPEATED: Final = 20
"""The most occurrences of a parameter that may be repeated."""


class ApiError(Exception):
    """An error response: its status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """An answer with a status or headers of its own.  value: None for no content."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Param:
    """A parameter of the query (or a header).  schema: of its value; integers are parsed.

    many: it may be given several times, at most `REPEATED`; its value is then a tuple.
    """

    name: str
    schema: Schema
    default: Any = None
    header: bool = False
    many: bool = False

    def read(self, request: Request) -> Any:
        """Return its value in a request.  Raises ApiError."""
        if self.header:
            return request.headers.get(self.name, self.default)
        given = request.query_params.getlist(self.name)
        if len(given) > (REPEATED if self.many else 1):
            raise ApiError(400, f"{self.name} is given {len(given)} times")
        if self.many:
            return tuple(map(self._value, given))
        return self._value(given[0]) if given else self.default

    def _value(self, text: str) -> Any:
        value: Any = text
        kind = self.schema["type"]
        if kind == "integer" and re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII):
            value = int(value)
        elif kind == "boolean" and value in ("true", "false"):
            value = value == "true"
        try:
            check(value, self.schema, {}, self.name)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        return value


@dataclass(frozen=True)
class ApiRequest:
    """A validated request: its proxy, who asks, the parts of its path, its parameters and its body."""

    proxy: ManagedProxy
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    headers: Mapping[str, str]

    def tell(self, text: str, conn: int | None = None, *, noted: bool = True, **facts: object) -> None:
        """Log a change and who made it, and note both in the capture.

        conn: of one connection.  noted: False where the capture has a note of it anyway.
        """
        proxy, who = self.proxy.proxy, self.caller.name
        proxy.emit(Notice(now_ns(), conn, "info", text, {"by": who, **facts}))
        if not noted:
            return
        about = {**({} if conn is None else {"connection": conn}), **facts}
        told = "".join(f", {name} {value}" for name, value in about.items() if value is not None)
        proxy.mark(f"{text} by {who}{told}")


_NOBODY: Final = Caller("nobody", changes=False)
"""The caller on the open paths, where the guard looks for no token."""
Run = Callable[[ApiRequest], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """A method of a path.

    name: the operation id.  text: a sentence, the summary; what follows it is the description.
    run: returns the value of the answer, a `Reply` or a response.  answer: the schema of the value, or a
    media type for another kind of content; None for no content.  status: of success.  more: the further
    statuses that it may have, beside those of every operation.  open: it needs no token.  changes: whether it
    changes something; without it, all but GET do.
    """

    method: str
    path: str
    name: str
    text: str
    run: Run
    answer: Schema | str | None
    params: tuple[Param, ...] = ()
    body: Schema | None = None
    body_needed: bool = True
    status: int = 200
    more: tuple[int, ...] = ()
    open: bool = False
    changes: bool | None = None

    @property
    def refused_to_readers(self) -> bool:
        """True if it changes something."""
        return self.method != "GET" if self.changes is None else self.changes

    @property
    def parts(self) -> list[str]:
        """The names of the path parameters."""
        return re.findall(r"{(\w+)}", self.path)


class _Json(JSONResponse):
    """An answer in JSON.  What is not Unicode, in names of peers and files, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


async def perform(
    operation: Operation,
    request: Request,
    proxies: Mapping[str, ManagedProxy],
    shapes: Mapping[str, Schema],
) -> Response:
    """Answer a request."""
    caller: Caller = request.scope.get(CALLER, _NOBODY)
    if operation.refused_to_readers and not caller.changes:
        return failure(403, f"{caller.name} may only read: the token has the role reader")
    try:
        call = await _read_call(operation, request, caller, proxies, shapes)
        answer = await operation.run(call)
    except ApiError as error:
        return failure(error.status, str(error))
    except StaleRules as error:
        return failure(412, str(error))
    except ConfigError as error:
        return failure(422, str(error))
    except CaptureError as error:
        return failure(409, str(error))
    except OSError as error:  # from a disk: the server handles sockets
        return failure(409, f"{error.filename or 'the disk'}: {error.strerror}")
    if isinstance(answer, Response):
        return answer
    reply = answer if isinstance(answer, Reply) else Reply(answer, operation.status)
    if reply.value is None:
        return Response(status_code=reply.status, headers=reply.headers)
    return _Json(reply.value, reply.status, reply.headers)


def failure(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer that is an error."""
    return _Json({"error": text}, status, headers)


async def refused(_: Request, error: Exception) -> Response:
    """Answer a request that matches no route, in the form of all errors."""
    assert isinstance(error, HTTPException)
    return failure(error.status_code, str(error.detail).lower(), error.headers)


async def _read_call(
    operation: Operation,
    request: Request,
    caller: Caller,
    proxies: Mapping[str, ManagedProxy],
    shapes: Mapping[str, Schema],
) -> ApiRequest:
    path: dict[str, str] = dict(request.path_params)
    name = path.pop("proxy", None)
    managed = proxies.get(name) if name is not None else next(iter(proxies.values()), None)
    if managed is None:
        raise ApiError(404, f"there is no proxy {name!r}" if name is not None else "there is no proxy")
    known = [param.name for param in operation.params if not param.header]
    for given in request.query_params:
        if given not in known:
            raise ApiError(400, f"there is no parameter {given[:80]!r}: {unknown(given, known)}")
    query = {param.name: param.read(request) for param in operation.params}
    body = await _body(operation, request, shapes)
    return ApiRequest(managed, caller, path, query, body, request.headers)


async def _body(operation: Operation, request: Request, shapes: Mapping[str, Schema]) -> Any:
    """Return the body as JSON.  Raises ApiError for invalid JSON, and where it does not match the schema."""
    if operation.body is None:
        return None
    if int(request.headers.get("content-length", 0)) > MOST_BODY:
        raise ApiError(413, _TOO_LARGE)
    raw, more = bytearray(), True
    while more:  # not `request.stream()`: an error would leave that generator to the garbage collector
        message = await request.receive()
        raw += message.get("body", b"")
        if len(raw) > MOST_BODY:
            raise ApiError(413, _TOO_LARGE)
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the body is not whole")
        more = message["more_body"]
    if not raw and not operation.body_needed:
        return {}
    try:
        # Its own errors are ValueErrors too: wrong UTF-8, a number of too many digits.
        body = json.loads(raw.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
        json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair cannot be encoded
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not JSON: {reason[:200]}") from None
    try:
        check(body, operation.body, shapes)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return body


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has a key twice")
    return made


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
