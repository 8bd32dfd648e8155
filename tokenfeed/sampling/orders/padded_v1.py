"""`padded-1`: one piece of a document a row, each once per epoch, permuted as `shuffled-1`.

Which pieces there are: sampling/document_rows.py. Released; never edited.
"""

from __future__ import annotations

from .shuffled_v1 import indices, places, places_among

NAME = "padded-1"
USES_SEED = True
HAS_EPOCHS = True
LONG_DOCUMENTS: tuple[str, ...] = ("cut", "drop", "truncate")
BLOCK_TOKENS = 0
__all__ = [
    "BLOCK_TOKENS",
    "HAS_EPOCHS",
    "LONG_DOCUMENTS",
    "NAME",
    "USES_SEED",
    "indices",
    "places",
    "places_among",
]
