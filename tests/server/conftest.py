"""What the tests of the server share."""

from __future__ import annotations

import numpy as np

from server.formats import STORED, Asked


def asked(dtype: str | None = None) -> Asked:
    """What a user says who knows the type of the tokens, "<u2", or says nothing."""
    return Asked(dtype=None if dtype is None else STORED[np.dtype(dtype).name])
