"""Settings that users can make: fields of dataclasses, each written once.

    @dataclass(frozen=True, slots=True)
    class RecordSettings:
        flush: int = setting(DURATION, "250ms", "The longest time before a frame is written.")

Here the group of recordings has the prefix `record`, so the flag `--record-flush`, the variable
`NATSPROXY_RECORD_FLUSH`, the key `record-flush` of a file, its line in `--help` and the typed default all
come from this field.  `options_of` lists the options of a class, and `settings_from` makes an instance
of it from their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from natsproxy import converters
from natsproxy.addresses import is_host
from natsproxy.errors import ConfigError
from natsproxy.units import format_duration, format_size

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """A type of values as users write them.

    read: returns the typed value of a text or a TOML value; raises ValueError with the end of a sentence that
    begins with the option's name.  metavar: the placeholder in `--help`; `a|b` lists the words that are
    valid, for completion.  show: writes a value as text again, where `str` does not.  secret: the value names
    what holds a secret.  It may be the secret itself by mistake, and is shown to nobody unless it can be
    opened.
    """

    read: Callable[[Any], T]
    metavar: str = "TEXT"
    show: Callable[[Any], str] | None = None
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as users see it.

    name: of the flag, `record-flush`.  default: as a user would write it, or None; a bool makes it a flag.
    many: the option may be given several times; `merge` makes one value of them.
    """

    name: str
    type: ValueType[Any]
    default: str | bool | None
    help: str
    many: bool = False
    merge: Callable[[tuple[Any, ...]], Any] = tuple
    required: bool = False

    @property
    def key(self) -> str:
        """The name as an identifier: `record_flush` for `record-flush`."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable: `NATSPROXY_RECORD_FLUSH`."""
        return f"NATSPROXY_{self.key.upper()}"

    @property
    def flag(self) -> bool:
        """True if the option is only on or off, and takes no value."""
        return isinstance(self.default, bool)

    @property
    def shown_default(self) -> str:
        """The default as a help text shows it, "" for none."""
        return "on" if self.default is True else self.default or ""

    @property
    def metavar(self) -> str:
        """The placeholder of a value in `--help`."""
        return self.type.metavar

    def read(self, value: Any) -> Any:
        """Return the typed value of a text or a TOML value; raises ValueError."""
        return self.type.read(value)


class _OptionGroup(NamedTuple):
    """The options of a class as part of another one.  optional: None where its first option is not given."""

    kind: type[Any]
    prefix: str
    optional: bool = False


# -- fields


def setting(type_: ValueType[T], default: str | bool, text: str, *, name: str = "") -> T:
    """Return a field with a default.  name: of the flag, where the field's own with its prefix is not it."""
    return field(default=type_.read(default), metadata=described(type_, text, name=name, default=default))


def optional(type_: ValueType[T], text: str, *, name: str = "") -> T | None:
    """Return a field that is None unless it is given."""
    return field(default=None, metadata=described(type_, text, name=name))


def several(
    type_: ValueType[T], text: str, *, default: str | None = None, name: str = "", required: bool = False
) -> tuple[T, ...]:
    """Return a field for an option that may be given several times."""
    values = () if default is None else (type_.read(default),)
    option = Option(name, type_, default, text, many=True, required=required)
    return field(default=values, metadata={_OPTION: option})


def merged(type_: ValueType[T], merge: Callable[[tuple[T, ...]], S], text: str, *, name: str = "") -> S:
    """Return a field whose one value is made of those of an option that may be given several times."""
    return field(default=merge(()), metadata={_OPTION: Option(name, type_, None, text, True, merge)})


def same_as(kind: type[Any], name: str) -> Any:
    """Return a field for the same setting as one of another class."""
    (one,) = (one for one in fields(kind) if one.name == name)
    return field(default=one.default, metadata=one.metadata)


def described(
    type_: ValueType[Any], text: str, *, name: str = "", default: str | bool | None = None
) -> Mapping[str, Any]:
    """Return the metadata of an option, for a field that must be given: `field(metadata=described(...))`."""
    return {_OPTION: Option(name, type_, default, text)}


def group(kind: type[S], prefix: str = "") -> S:
    """Return a field with settings of their own, whose names begin with the prefix."""
    return field(default_factory=kind, metadata={_GROUP: _OptionGroup(kind, prefix)})


def optional_group(kind: type[S], prefix: str) -> S | None:
    """Return a field with settings of their own; it is None unless the first of them is given."""
    return field(default=None, metadata={_GROUP: _OptionGroup(kind, prefix, optional=True)})


_OPTION: Final = "option"
_GROUP: Final = "group"

# -- options, and settings from their values


def options_of(kind: type[Any], prefix: str = "") -> tuple[Option, ...]:
    """Return the options of a class of settings, those of its groups included, in the order of its fields."""
    return tuple(_options(kind, prefix))


def _options(kind: type[Any], prefix: str) -> Iterator[Option]:
    for one in fields(kind):
        if _GROUP in one.metadata:
            inner: _OptionGroup = one.metadata[_GROUP]
            yield from _options(inner.kind, _joined(prefix, inner.prefix))
        elif _OPTION in one.metadata:
            yield _named(one, prefix)


def _joined(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _named(one: Field[Any], prefix: str) -> Option:
    option: Option = one.metadata[_OPTION]
    return replace(option, name=option.name or _joined(prefix, one.name.replace("_", "-")))


def settings_from(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    """Return settings from the typed values of their options by `Option.key`; other fields have defaults."""
    found: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if _GROUP in one.metadata:
            inner: _OptionGroup = one.metadata[_GROUP]
            name = _joined(prefix, inner.prefix)
            if not inner.optional or values[next(_options(inner.kind, name)).key] is not None:
                found[one.name] = settings_from(inner.kind, values, name)
        elif _OPTION in one.metadata:
            option = _named(one, prefix)
            value = values[option.key]
            found[one.name] = option.merge(tuple(value or ())) if option.many else value
    return kind(**found)


def read_values(options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return typed values by `Option.key` from values as users write them, and defaults for the others.

    options, given: by the names under which users give them; None stands for not given.  Raises ConfigError
    that begins with such a name.
    """
    found: dict[str, Any] = {}
    for name, option in options.items():
        value = option.default if given.get(name) is None else given[name]
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        try:
            read = [option.read(one) for one in values]
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{name} {error}") from None
        found[option.key] = read if option.many else read[0] if read else None
    return found


# -- types


def words(*choices: str) -> ValueType[str]:
    """Return the type of one of a few words."""
    return ValueType(converters.one_of(*choices), "|".join(choices))


def _host(value: Any) -> str:
    text = converters.line(value)
    if not is_host(text):
        raise ValueError(f"must be a host name or an IP address, not {text!r}")
    return text


TEXT: Final = ValueType(converters.text)
FLAG: Final = ValueType(converters.boolean)
NUMBER: Final = ValueType(converters.whole, "NUMBER")
PERCENT: Final = ValueType(converters.percent, "PERCENT")
DURATION: Final = ValueType(converters.duration_or_seconds, "DURATION", format_duration)
SIZE: Final = ValueType(converters.size, "SIZE", format_size)
SIZE_ABOVE_ZERO: Final = ValueType(converters.above_zero(converters.size), "SIZE", format_size)
FILE: Final = ValueType(converters.path, "FILE")
HOST: Final = ValueType(_host, "HOST")
