"""What the tests of formats share: a layout as a server sees it, and tokens as anybody would."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from server.storage.files import open_file
from server.storage.formats import FormatOptions, Layout, read_layout


def read(
    path: Path, dtype: str | None = None, *, form: str | None = None, tensor: str | None = None
) -> Layout:
    """Its layout, with what a user says of it.  Raises: InvalidCorpus."""
    name = None if dtype is None else np.dtype(dtype).name
    with open_file(str(path)) as file:
        return read_layout(file, FormatOptions.parse(form, name, tensor))


def tokens(path: Path, layout: Layout) -> list[int]:
    """What lies where the layout says."""
    content = path.read_bytes()[layout.first_byte :][: layout.content_bytes]
    found: list[int] = np.frombuffer(content, layout.dtype).tolist()
    return found


def ends(layout: Layout) -> list[int]:
    """Where its documents end."""
    assert layout.documents is not None
    return [end for block in layout.documents.ends() for end in block.tolist()]
