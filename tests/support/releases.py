"""The last release: what upgrades begin with."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

_BEFORE_RELEASES = "89ca1b5f5a875fbd6a2be10f0e46b1522fa7e56c"
"""A commit of this revision of the contract, in the place of a release as long as there is none."""


def last_release() -> str:
    """Return the newest version tag, or what is in its place. Without the history of the repository
    the test is skipped.
    """
    if (ROOT / ".git").exists():
        tags = _git("tag", "--list", "v*", "--sort=-version:refname").decode().split()
        found = tags[0] if tags else _BEFORE_RELEASES
        known = subprocess.run(["git", "cat-file", "-e", found], cwd=ROOT, capture_output=True)
        if known.returncode == 0:
            return found
    pytest.skip("needs the history of the repository: git fetch --unshallow")


def extract(commit: str, folder: Path, *paths: str) -> Path:
    """Write the files of a commit, or some of its paths, into a folder, and return it."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, *paths))) as packed:
        unpack(packed, folder)
    return folder


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the files of an archive into a folder."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4 on
    archive.extractall(folder)


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout
