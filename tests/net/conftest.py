"""Fixtures: certificates, made once."""

from __future__ import annotations

import pytest

from tests.kit.authority import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give a CA that both sides trust."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give a CA that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))
