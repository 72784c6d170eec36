"""`natsproxy ctl capture`: captures of a running proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from natsproxy.cli.admin_client import AdminClient, admin_options, json_option, names
from natsproxy.cli.options import setting_flag
from natsproxy.cli.table import show_table
from natsproxy.config.recording import RECORD_OPTIONS
from natsproxy.units import short_size


@click.group()
def capture() -> None:
    """Start, mark, stop and download captures of a running proxy.

    \b
    natsproxy ctl capture start incident
    natsproxy ctl capture mark 'the second node goes'
    natsproxy ctl capture stop
    """


def _settings(command: Any) -> Any:
    """Add the settings of a recording as options, without `record-` before their names."""
    for name, option in reversed(RECORD_OPTIONS.items()):
        command = setting_flag(option, name, read=False)(command)
    return command


@capture.command()
@admin_options
@json_option
@click.argument("name")
@_settings
def start(client: AdminClient, as_json: bool, name: str, **given: Any) -> None:
    """Start a capture: NAME.ncap is a file, any other name a folder.

    It is made in the folder of natsproxy run --admin-captures.

    \b
    natsproxy ctl capture start incident
    natsproxy ctl capture start orders.ncap --subject 'orders.>' --payload '>=hash'
    """
    settings = {
        name: list(value) if option.many else value
        for name, option in RECORD_OPTIONS.items()
        if (value := given[option.key])
    }
    _show(client.ask("POST", "capture", {"name": name, "settings": settings}), as_json)


@capture.command()
@admin_options
@json_option
def status(client: AdminClient, as_json: bool) -> None:
    """Show the current capture.

    \b
    natsproxy ctl capture status
    """
    _show(client.ask("GET", "capture"), as_json)


@capture.command()
@admin_options
@json_option
def stop(client: AdminClient, as_json: bool) -> None:
    """Stop the capture; it is whole when the command returns.

    \b
    natsproxy ctl capture stop
    """
    path = client.ask("GET", "capture")["path"]
    state = client.ask("DELETE", "capture")
    if as_json or state["recording"] or state["unwritten"]:
        _show(state, as_json)
    else:
        click.echo(f"{path} is whole")


@capture.command()
@admin_options
@json_option
def rotate(client: AdminClient, as_json: bool) -> None:
    """Start a new segment.

    \b
    natsproxy ctl capture rotate
    """
    _show(client.ask("POST", "capture/rotate"), as_json)


@capture.command()
@admin_options
@json_option
@click.argument("text")
def mark(client: AdminClient, as_json: bool, text: str) -> None:
    """Write a note into the capture.

    \b
    natsproxy ctl capture mark 'the second node goes'
    """
    _show(client.ask("POST", "capture/mark", {"text": text}), as_json)


@capture.command(name="list")
@admin_options
@json_option
def list_(client: AdminClient, as_json: bool) -> None:
    """List the segments that can be downloaded.

    \b
    natsproxy ctl capture list
    """
    rows = client.ask("GET", "capture/segments", query={"limit": 1000})["segments"]
    if as_json:
        click.echo(json.dumps(rows))
        return
    shown = [
        (row["name"], short_size(row["size"]), row["modified"], "yes" if row["writing"] else "")
        for row in rows
    ]
    show_table(("segment", "size", "modified", "being written"), shown)


@capture.command()
@admin_options
@click.argument(
    "segment",
    shell_complete=names("capture/segments", lambda answer: [row["name"] for row in answer["segments"]]),
)
@click.option("--output", type=click.Path(path_type=Path), help="File to write; default: the segment's name.")
def download(client: AdminClient, segment: str, output: Path | None) -> None:
    """Download a segment; one that is being written, up to its last whole block.

    natsproxy ctl capture list names the segments: of a folder each is FOLDER/FILE.

    \b
    natsproxy ctl capture download incident.ncap
    """
    target = output or Path(segment.rpartition("/")[2])
    client.save(f"capture/segments/{quote(segment)}", target)
    click.echo(str(target))


def _show(state: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(state))
    elif state["recording"]:
        click.echo(f"recording to {state['path']}, {short_size(state['size'])} so far in {state['file']}")
    else:
        click.echo("no capture is being made" + (f"; {state['unwritten']}" if state["unwritten"] else ""))
