"""The settings of the pytest plugin: flags, ini keys and the marker.

A flag wins over the ini file, and the marker over both; lists of options of the comparison add up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from natsproxy.addresses import mask_addresses
from natsproxy.config.tls import UpstreamTls
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.option import (
    DURATION,
    NUMBER,
    PERCENT,
    TEXT,
    optional,
    options_of,
    read_values,
    setting,
    settings_from,
    words,
)
from natsproxy.replay.cassette.file_names import safe_name
from natsproxy.replay.cassette.modes import MODES
from natsproxy.replay.cassette.record_anew import ANY_SERVER, option_flags, shell_line
from natsproxy.replay.conversation.match_options import OPTIONS, Given, MatchOptions, combine, plain, read

if TYPE_CHECKING:
    from natsproxy.option import Option

FAILED: Final = "failed"
FORMATS: Final = {"ncap": ".ncap", "text": ".nats.txt"}
"""The suffix of each form of cassettes."""
RECEIPT: Final = "nats-cassettes.receipt.json"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The settings of the plugin: each is a flag `--nats-NAME` and an ini key `nats_NAME`.

    Beside them are `strict`, the options of the comparison, and those of TLS to the server.
    """

    record: str = setting(
        words(*MODES, FAILED), "none", "How cassettes are recorded; failed: anew where the last run failed."
    )
    upstream: str = setting(TEXT, "", "The server to record from: nats://HOST:PORT.")
    setup: str = setting(
        TEXT, "", "A shell command that prepares the server before it is recorded from or swept."
    )
    cassette_dir: str = setting(TEXT, "", "The folder of all cassettes, from rootdir; else beside the tests.")
    cassette_format: str = setting(words(*FORMATS), "ncap", "The form of new cassettes.")
    seed: int = setting(NUMBER, "0", "The seed of faults with chance.")
    receipt: str = setting(TEXT, RECEIPT, "The receipt of the run, from the root folder; empty for none.")
    sweep_faults: str = setting(TEXT, "", "The faults of --nats-sweep, comma-separated; else its defaults.")
    sweep_subjects: str = setting(TEXT, "", "Sweep only frames on these subjects, comma-separated patterns.")
    sweep_for: int | None = optional(DURATION, "Begin no run with a fault after this time, for each test.")
    sweep_patience: int | None = optional(DURATION, "The time that a swept test gets before it is hung.")
    min_served: int | None = optional(NUMBER, "Fail the run if fewer recorded exchanges were served.")
    min_coverage: float | None = optional(PERCENT, "Fail the run if less of the recordings was served.")

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of a sweep; () for its defaults."""
        return _several(self.sweep_faults)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of a sweep; () for all."""
        return _several(self.sweep_subjects)


_OPTIONS: Final = {f"nats_{option.key}": option for option in options_of(PluginSettings)}
_UPSTREAM_TLS: Final = tuple(option for option in options_of(UpstreamTls, "upstream-tls") if not option.flag)


def add_options(parser: pytest.Parser) -> None:
    """Add the options and their ini keys."""
    group = parser.getgroup("natsproxy")
    for option in (*_OPTIONS.values(), *_UPSTREAM_TLS):
        choices = option.metavar.split("|") if "|" in option.metavar else None
        default = f" ({option.default})" if option.default else ""
        group.addoption(f"--nats-{option.name}", choices=choices, default=None, help=option.help + default)
        parser.addini(f"nats_{option.key}", option.help, default=option.default or "")
    for name, value, text in (
        (
            "strict",
            True,
            "Fail if any recorded frame was not used; without it, reads and pulls may be left out.",
        ),
        ("no-strict", False, "Pass whatever recorded frames were not used."),
    ):
        group.addoption(f"--nats-{name}", dest="nats_strict", action="store_const", const=value, help=text)
    group.addoption(
        "--nats-no-receipt", dest="nats_receipt", action="store_const", const="", help="Write no receipt."
    )
    for name, text in (
        (
            "sweep",
            "Run each test that passes with nats_proxy or nats_cassette again, for each place in its "
            "conversation and each fault there: it fails where a fault hangs it or lets it pass wrongly.",
        ),
        ("swept", "Let both fixtures use the server of NATS_URL, in a test that `natsproxy sweep` runs."),
    ):
        group.addoption(f"--nats-{name}", action="store_true", help=text)
    parser.addini("nats_strict", "Fail if any recorded frame was not used", type="bool", default=None)
    for option in OPTIONS:
        _add_match_option(parser, group, option)


def _add_match_option(parser: pytest.Parser, group: pytest.OptionGroup, option: Option) -> None:
    """Add an option of the comparison, as a flag and as an ini key."""
    if option.flag:
        for word, value in ((option.name, True), (f"no-{option.name}", False)):
            help_text = option.help if value else f"The opposite of --nats-{option.name}."
            group.addoption(
                f"--nats-{word}", dest=f"nats_{option.key}", action="store_const", const=value, help=help_text
            )
    else:
        group.addoption(f"--nats-{option.name}", action="append", metavar=option.metavar, help=option.help)
    kind: Literal["bool", "linelist"] = "bool" if option.flag else "linelist"
    parser.addini(f"nats_{option.key}", option.help, type=kind, default=None)


def check_settings(config: pytest.Config) -> None:
    """Register the marker; refuse invalid settings."""
    config.addinivalue_line(
        "markers",
        "nats_cassette(path=None, *, strict=None, **options): play this test's NATS server from a capture; "
        f"options: bodies, scrub, {', '.join(option.key for option in OPTIONS)}",
    )
    if plugin_settings(config).record == FAILED and not config.pluginmanager.has_plugin("cacheprovider"):
        raise pytest.UsageError("nats-record=failed needs pytest's cache: not with -p no:cacheprovider")
    _check_sweep(config)
    try:
        _match_options(config)
    except NatsproxyError as error:
        raise pytest.UsageError(str(error)) from None


def _several(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.replace(" ", "").split(",")))


def sweeps(config: pytest.Config) -> bool:
    """True if this session sweeps its tests."""
    return bool(config.getoption("nats_sweep")) and not swept(config)


def swept(config: pytest.Config) -> bool:
    """True if this session is a run of a sweep."""
    return bool(config.getoption("nats_swept"))


def _check_sweep(config: pytest.Config) -> None:
    if swept(config) and not os.environ.get("NATS_URL"):
        raise pytest.UsageError("--nats-swept needs a server's URL in NATS_URL: `natsproxy sweep` sets it")
    if not sweeps(config):
        return
    if config.getoption("dist", "no") != "no":
        raise pytest.UsageError("--nats-sweep runs one test side by side with itself: not with -n of xdist")
    from natsproxy.sweep.faults import chosen

    try:
        chosen(plugin_settings(config).faults)
    except ValueError as error:
        raise pytest.UsageError(f"nats_sweep_faults: {error}") from None


def plugin_settings(config: pytest.Config) -> PluginSettings:
    """Return the settings that flags and the ini file give.  Raises UsageError."""
    given = {name: _given(config, option.key) for name, option in _OPTIONS.items()}
    # What has no default is "" where the file does not have it.
    given = {
        name: None if value == "" and _OPTIONS[name].default is None else value
        for name, value in given.items()
    }
    try:
        return settings_from(PluginSettings, read_values(_OPTIONS, given))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def _given(config: pytest.Config, name: str) -> Any:
    """Return what a flag says, else the ini file."""
    flag = config.getoption(f"nats_{name}")
    return config.getini(f"nats_{name}") if flag is None else flag


def upstream_tls(config: pytest.Config) -> dict[str, Any]:
    """Return the options of TLS to the server that are given."""
    found = {option.key: _given(config, option.key) for option in _UPSTREAM_TLS}
    return {key: value for key, value in found.items() if value}


def _match_options(config: pytest.Config, *, flags: bool = True) -> Given:
    """Return the options of the comparison that the ini file and, with `flags`, the command line give."""
    ini = {option.key: config.getini(f"nats_{option.key}") for option in OPTIONS}
    # Old pytests return "" or [] for what is not in the file.
    written = read({key: value for key, value in ini.items() if value not in (None, "", [])}, "nats_")
    if not flags:
        return written
    given = {option.name: config.getoption(f"nats_{option.key}") for option in OPTIONS}
    return combine(written, read(given, "--nats-"))


def mode_of(node: pytest.Item) -> str:
    """Return the record mode of a test: `failed` records anew if it has failed in the run before."""
    mode = plugin_settings(node.config).record
    if mode != FAILED:
        return mode
    return "all" if node.nodeid in last_failed(node.config) else "none"


def last_failed(config: pytest.Config) -> Mapping[str, Any]:
    """Return the tests that failed in the run before, by their node ids."""
    return {} if config.cache is None else dict(config.cache.get("cache/lastfailed", {}))


def default_path(node: pytest.Item, form: str = "ncap", folder: str = "") -> Path:
    """Return the path of a test's cassette: by module, class and name, distinct per parameter set.

    form: of a new one; one that exists keeps its own.  folder: of all cassettes, in which modules keep their
    folders; default: one beside each module.
    """
    classes = [str(one.name) for one in node.listchain() if isinstance(one, pytest.Class)]
    name = ".".join([*classes, node.name.replace("[", ".", 1).removesuffix("]")])
    safe = safe_name(name)
    where = node.path.parent / "cassettes"
    if folder:
        root = node.config.rootpath
        inside = node.path.is_relative_to(root)
        where = root / folder / node.path.parent.relative_to(root if inside else node.path.anchor)
    paths = [where / node.path.stem / f"{safe}{suffix}" for suffix in (FORMATS[form], *FORMATS.values())]
    return next((path for path in paths if path.exists()), paths[0])


def marked(node: pytest.Item, *, flags: bool = True) -> tuple[Path, dict[str, Any]]:
    """Return the path and the other settings of a test, with those that its markers give.

    The nearest marker wins; lists of options add up.  flags: False leaves those of the command line out.
    """
    settings = plugin_settings(node.config)
    path = default_path(node, settings.cassette_format, settings.cassette_dir)
    strict = _given(node.config, "strict")
    strict = None if strict in ("", []) else strict  # old pytests return those for what is not in the file
    options = _match_options(node.config, flags=flags)
    for marker in reversed(list(node.iter_markers("nats_cassette"))):
        given = dict(marker.kwargs)
        named = marker.args[0] if marker.args else given.pop("path", None)
        path = path if named is None else node.path.parent / named
        strict = given.pop("strict", strict)
        if marker.args[1:]:
            raise NatsproxyError(f"nats_cassette takes a path and named options, not {marker.args[1]!r}")
        options = combine(options, read(given, "nats_cassette: "))
    return path, {"strict": strict, **plain(options)}


def node_argument(node: pytest.Item) -> str:
    """Return the argument of the command line that chooses a test: its id is relative to another folder."""
    _, *names = node.nodeid.split("::")
    return "::".join([os.path.relpath(node.path, node.config.invocation_params.dir), *names])


def record_command(node: pytest.Item, options: MatchOptions) -> str:
    """Return the command that records the cassette of one test anew.  options: those in force."""
    config = node.config
    words = ["pytest", node_argument(node), "--nats-record=all"]
    upstream = mask_addresses(config.getoption("nats_upstream") or "")
    if upstream or not config.getini("nats_upstream"):
        words.append(f"--nats-upstream={upstream or ANY_SERVER}")
    _, lasting = marked(node, flags=False)
    return shell_line([*words, *option_flags(options, lasting, "--nats-")])
