"""What `import client` shows."""

from __future__ import annotations

import client
from tokenfeed import errors


def test_every_error_that_a_trainer_can_meet_is_shown() -> None:
    """So that it can be caught by name. Files that cannot be served, or ingested, are the
    operator's; one that cannot be read for a while is a server that is away.
    """
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }

    assert kinds - {"InvalidCorpus", "InvalidSource", "WriteFailed", "Unreadable"} <= set(
        client.__all__
    )
