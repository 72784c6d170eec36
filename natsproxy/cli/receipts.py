"""Receipts of commands: their options, the file beside the capture, and the line on stderr."""

from __future__ import annotations

import functools
import glob
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from natsproxy.cli.options import OptionType
from natsproxy.cli.paths import FilePath
from natsproxy.errors import ConfigError
from natsproxy.option import NUMBER, PERCENT, Option
from natsproxy.printable import printable
from natsproxy.replay.receipt import SUFFIX, Minimum, Receipt


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """The receipt of one run of a command.

    path: None for none.  asked: by `--receipt`; a file that cannot be written is an error then, and a warning
    otherwise.
    """

    path: Path | None
    asked: bool = False
    minimum: Minimum = field(default_factory=Minimum)
    began: float = field(default_factory=time.time)

    def begin(self, capture: Path) -> None:
        """Remove the receipt of an earlier run: it says nothing about one that cannot start.

        Raises ConfigError where that one cannot be written either.
        """
        if self.path is None:
            return
        if self.path == capture:
            raise ConfigError(f"--receipt {self.path} is the capture itself: give another name")
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            if self.asked:
                raise ConfigError(f"cannot write the receipt {self.path}: {error.strerror}") from None

    def save(self, ran: str, **members: Any) -> bool:
        """Write the receipt, and print its line on stderr; return False if `--receipt` cannot be written."""
        receipt = Receipt(ran, self.began, time.time() - self.began, minimum=self.minimum, **members)
        for warning in receipt.warnings:
            click.echo(printable(f"Warning: {warning}"), err=True)
        where, saved = "", True
        if self.path is not None:
            try:
                receipt.write(self.path)
                where = f" ({self.path})"
            except OSError as error:
                saved = not self.asked
                more = " (--no-receipt, or --receipt FILE elsewhere)" if saved else ""
                problem = f"cannot write the receipt {self.path}: {error.strerror}{more}"
                click.echo(printable(f"{'Warning' if saved else 'Error'}: {problem}"), err=True)
        click.echo(printable(f"receipt: {receipt.line()}{where}"), err=True)
        return saved


def receipt_options(*, minimum: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of receipts to a command with a capture; it gets a `ReceiptFile` as `receipt`.

    minimum: add those of what has to be served, too.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_receipt(*args: Any, receipt: Path | None, no_receipt: bool, **values: Any) -> None:
            least = Minimum(*(values.pop(name, None) for name in ("min_served", "min_coverage")))
            if receipt is not None and no_receipt:
                raise ConfigError("--receipt or --no-receipt: leave one out")
            path = None if no_receipt else receipt or _beside(values["capture"])
            command(*args, receipt=ReceiptFile(path, receipt is not None, least), **values)

        add = _options(minimum)
        for option in reversed(add):  # `--help` lists options in reverse order of decoration
            with_receipt = option(with_receipt)
        return with_receipt

    return decorate


def _options(minimum: bool) -> list[Callable[[Callable[..., None]], Callable[..., None]]]:
    def typed(option: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
        return click.option(f"--{option.name}", type=OptionType(option), help=option.help)

    least = [
        Option("min-served", NUMBER, None, "Fail if fewer recorded exchanges were served; 0 allows none."),
        Option("min-coverage", PERCENT, None, "Fail if less of the recorded exchanges was served."),
    ]
    return [
        *(typed(option) for option in (least if minimum else [])),
        click.option(
            "--receipt", type=FilePath(), help=f"Write the receipt there.  [CAPTURE{SUFFIX}, beside it]"
        ),
        click.option("--no-receipt", is_flag=True, help="Write no receipt."),
    ]


def _beside(capture: Path) -> Path | None:
    """Return the path of the receipt of a capture; None for a pattern, which it might match."""
    if glob.has_magic(str(capture)) and not capture.exists():
        return None
    return capture.with_name(f"{capture.name}{SUFFIX}") if capture.name else capture / f"cassettes{SUFFIX}"
