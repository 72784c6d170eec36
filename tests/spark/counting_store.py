"""An object store on a folder of this machine that counts requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem, SubTreeFileSystem


class CountingStore:
    """Files below a folder.

    requests: how many there were, by object; a look at a folder is none.  most: how many were under way at
    once.  opening: called by each request that opens an object, and takes as long as the store does.
    """

    def __init__(self, root: Path, opening: Callable[[], object]) -> None:
        self._files = SubTreeFileSystem(str(root), LocalFileSystem())
        self._opening = opening
        self._lock = threading.Lock()
        self._under_way = self.most = 0
        self.requests: Counter[str] = Counter()

    @contextmanager
    def _request(self, path: str) -> Iterator[None]:
        with self._lock:
            self.requests[path] += 1
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        yield
        with self._lock:
            self._under_way -= 1

    def get_file_info(self, asked: Any) -> Any:
        """Return what `pyarrow.fs` returns."""
        return self._files.get_file_info(asked)

    def open_input_file(self, path: str) -> Any:
        """Open an object."""
        with self._request(path):
            self._opening()
            file = self._files.open_input_file(path)

        class Counted:
            size, close = file.size, file.close

            @staticmethod
            def read_at(size: int, offset: int) -> bytes:
                with self._request(path):
                    data: bytes = file.read_at(size, offset)
                return data

        return Counted()
