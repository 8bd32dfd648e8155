"""Helpers of the tests of formats: a layout as a server reads it, and the tokens of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tokenfeed.server.storage.door import open_file
from tokenfeed.server.storage.formats import FormatOptions, Layout, read_layout


def read(
    path: Path, dtype: str | None = None, *, form: str | None = None, tensor: str | None = None
) -> Layout:
    """Its layout, with the options of a user.  Raises: InvalidCorpus."""
    name = None if dtype is None else np.dtype(dtype).name
    with open_file(str(path)) as file:
        return read_layout(file, FormatOptions.parse(form, name, tensor))


def tokens(path: Path, layout: Layout) -> list[int]:
    """The tokens at the place that the layout gives."""
    content = path.read_bytes()[layout.first_byte :][: layout.content_bytes]
    found: list[int] = np.frombuffer(content, layout.dtype).tolist()
    return found


def ends(layout: Layout) -> list[int]:
    """Where its documents end."""
    assert layout.documents is not None
    return [end for block in layout.documents.ends() for end in block.tolist()]
