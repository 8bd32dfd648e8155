"""What `import client` shows."""

from __future__ import annotations

import client
from tokenfeed import errors


def test_every_error_that_a_trainer_can_meet_is_shown() -> None:
    """So that it can be caught by name. Token files that cannot be served are the operator's."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}

    assert kinds - {"BadCorpus"} <= set(client.__all__)
