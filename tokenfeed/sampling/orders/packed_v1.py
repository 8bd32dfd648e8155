"""`packed-1`: rows of whole pieces of documents, each once per epoch, permuted as `shuffled-1`.

Which pieces form a row: sampling/packing.py. Released; never edited.
"""

from __future__ import annotations

from . import shuffled_v1

NAME = "packed-1"
USES_SEED = True
HAS_EPOCHS = True
LONG_DOCUMENTS = ("cut",)

places = shuffled_v1.places
places_among = shuffled_v1.places_among
