"""Waits of the code under test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


def replace_waits(monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]) -> None:
    """Call a function in the place of `time.sleep`, in this thread: libraries have others that sleep."""
    sleep, own = time.sleep, threading.current_thread()
    monkeypatch.setattr(
        time, "sleep", lambda seconds: (wait if threading.current_thread() is own else sleep)(seconds)
    )
