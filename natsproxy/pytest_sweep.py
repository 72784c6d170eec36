"""The sweep of a test: its program is a pytest of its own with that one test and `--nats-swept`.

The flag says that the server of the fixtures is that of NATS_URL.  So a test is a program like any other: a
run with a fault cannot harm the session, a test that hangs is ended, and `natsproxy sweep --only` shows a
finding again.  In such a run both fixtures are a proxy before the sweep's, so that a test has its frames and
its own faults.  A cassette is played by the sweep, behind the faults, and judges nothing: a frame that a
fault has kept from it was sent.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from natsproxy.addresses import mask_addresses
from natsproxy.pytest_settings import PluginSettings, node_argument, plugin_settings, upstream_tls
from natsproxy.replay.cassette.file_names import safe_name
from natsproxy.sweep.kept_sweep import KeptSweep, Outcome
from natsproxy.sweep.programs import Command
from natsproxy.sweep.sweeping import SweepOptions
from natsproxy.sweep.worlds import Played
from natsproxy.testing.sweeps import OUT, Sweeping, world_of

if TYPE_CHECKING:
    import pytest

    from natsproxy.sweep.worlds import World
    from natsproxy.testing import cassette

_OF_THE_SESSION: Final = ("--nats-sweep", "--basetemp")
"""Begins of options that the pytest of one test does not get; it would empty the folder of --basetemp."""


def sweep_test(item: pytest.Item, tape: cassette | None) -> Outcome:
    """Sweep a test.  tape: its cassette; None for one with `nats_proxy`.

    Raises NatsproxyError where it does not pass in a pytest of its own.
    """
    config, given = item.config, plugin_settings(item.config)
    world, flags = _world(config, given, tape)
    if given.sweep_patience is not None:
        flags.append(f"--patience={given.sweep_patience / 1e9:g}")
    out = config.rootpath / OUT / safe_name(item.nodeid)
    program = _Test(item, out, flags)
    options = SweepOptions(
        faults=given.faults,
        subjects=given.subjects,
        budget=_seconds(given.sweep_for),
        patience=_seconds(given.sweep_patience),
        jobs=os.cpu_count() or 1,
    )
    return Sweeping(KeptSweep(world, program, options, out, program.again(out))).finish()


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _world(config: pytest.Config, given: PluginSettings, tape: cassette | None) -> tuple[World, list[str]]:
    """Return the servers of the runs, and the flags that `natsproxy sweep` has for them."""
    if tape is not None:
        path = os.path.relpath(tape.path, config.invocation_params.dir)
        return Played(tape.path, tape.options), [f"--cassette={path}"]
    if not given.upstream:
        return world_of(setup=given.setup), ["--server", *([f"--setup={given.setup}"] if given.setup else [])]
    tls = upstream_tls(config)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in tls.items()]
    return world_of(upstream=given.upstream, **tls), [
        f"--upstream={mask_addresses(given.upstream)}",
        *flags,
    ]


class _Test(Command):
    """A pytest with one test.

    out: the folder of the results.  flags: those of `natsproxy sweep`.
    """

    def __init__(self, item: pytest.Item, out: Path, flags: Sequence[str]) -> None:
        self._test = node_argument(item)
        self._flags = flags
        self._folder = item.config.invocation_params.dir
        words = [*_pytest(item.config, self._folder, out), "--nats-swept", self._test]
        super().__init__(words, os.environ, self._folder)

    @property
    def name(self) -> str:
        """The command as people type it."""
        return f"pytest {self._test}"

    def again(self, out: Path) -> str:
        """Return the command that shows a finding again."""
        flags = shlex.join([*self._flags, f"--out={os.path.relpath(out, self._folder)}"])
        return f"natsproxy sweep --only {{number}} {flags} -- {self.line}"


def _pytest(config: pytest.Config, folder: Path, out: Path) -> list[str]:
    """Return the command of a pytest with the options of this one, and without its tests.

    It captures no output, of which a test that is ended would leave nothing, and has a cache of its own: its
    failures are no failures of the session.
    """
    paths = [f"--rootdir={os.path.relpath(config.rootpath, folder)}"]
    if config.inipath is not None:
        paths.append(f"--config-file={os.path.relpath(config.inipath, folder)}")
    if config.pluginmanager.has_plugin("cacheprovider"):
        paths.append(f"--override-ini=cache_dir={os.path.relpath(out / 'cache', config.rootpath)}")
    return [sys.executable, "-m", "pytest", *paths, *_options(config), "-s"]


def _options(config: pytest.Config) -> list[str]:
    """Return the options of the command line."""
    words = list(map(str, config.invocation_params.args))
    for one in config.option.file_or_dir:
        if one in words:  # else it is in the ini file
            words.remove(one)
    kept, value = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if value:
            value = False
        elif name.startswith(_OF_THE_SESSION):
            value = not equals and name != "--nats-sweep"
        else:
            kept.append(word)
    return kept
