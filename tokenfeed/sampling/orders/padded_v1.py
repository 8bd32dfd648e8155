"""`padded-1`: one piece of a document a row, each once per epoch, permuted as `shuffled-1`.

Which pieces there are: sampling/document_rows.py. Released; never edited.
"""

from __future__ import annotations

from . import shuffled_v1

NAME = "padded-1"
USES_SEED = True
HAS_EPOCHS = True
LONG_DOCUMENTS = ("cut", "drop", "truncate")

places = shuffled_v1.places
places_among = shuffled_v1.places_among
