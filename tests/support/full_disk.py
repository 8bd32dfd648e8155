"""A disk that gets full."""

from __future__ import annotations

import errno
import os

import pytest


class FullDisk:
    """Refuses to write more to the files in some folders than they have room for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = os.write
        self.room_bytes: dict[str, int] = {}
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, content: bytes) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        for folder, room_bytes in self.room_bytes.items():
            if path.startswith(f"{folder}/"):
                if not room_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done = self._write(descriptor, content[:room_bytes])
                self.room_bytes[folder] -= done
                return done
        return self._write(descriptor, content)
