"""Proxies, faults and cassettes for the tests of NATS programs, in any test framework."""

from natsproxy.testing.cassettes import CassetteMismatch, cassette
from natsproxy.testing.proxy import SeenFrame, TestProxy, WaitTimeout
from natsproxy.testing.thread import BlockingCall

__all__ = ["BlockingCall", "CassetteMismatch", "SeenFrame", "TestProxy", "WaitTimeout", "cassette"]
