"""The firings that are kept take little memory, however many frames each stands for."""

from __future__ import annotations

from natsproxy.admin.firing_log import FiringLog
from natsproxy.config.settings import ProxySettings
from natsproxy.events import Firing
from natsproxy.net.proxy import Proxy


def test_the_frames_of_a_drop_are_counted_and_not_kept() -> None:
    proxy = Proxy(ProxySettings())
    log = FiringLog(proxy)
    others = tuple((number, number, "a", "PUB") for number in range(2, 1001))
    proxy.emit(Firing(0, 1, "r", "drop", "c2s", 1, 1, "drop", subject="a", count=1000, also=others))
    (kept,) = log.after(0)
    assert kept.firing == Firing(0, 1, "r", "drop", "c2s", 1, 1, "drop", subject="a", count=1000)
    assert proxy.fired["r"] == 1000
