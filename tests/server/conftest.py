"""What the tests of the server share."""

from __future__ import annotations

import numpy as np
import pytest

from server.formats import Asked
from server.storage.choice import STORES, Storing


@pytest.fixture(params=STORES)
def storing(request: pytest.FixtureRequest) -> Storing:
    """Each store that there is for local files, in turn."""
    return Storing(read=request.param)


def asked(dtype: str | None = None) -> Asked:
    """What a user says who knows the type of the tokens, "<u2", or says nothing."""
    return Asked.of(None, None if dtype is None else np.dtype(dtype).name, None)
