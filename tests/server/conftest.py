"""What the tests of the server share."""

from __future__ import annotations

import numpy as np

from server.formats import Asked


def asked(dtype: str | None = None) -> Asked:
    """What a user says who knows the type of the tokens, "<u2", or says nothing."""
    return Asked.of(None, None if dtype is None else np.dtype(dtype).name, None)
