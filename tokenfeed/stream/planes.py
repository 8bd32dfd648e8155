"""Planes: data that accompanies the tokens of rows, such as a loss mask. Each kind is a field of
the message Frame, with a number from 50 to 99.

The kinds are read from tokenfeed.proto: there is no other list of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ..errors import InvalidRequest
from ..v1 import tokenfeed_pb2 as pb

KINDS: dict[int, str] = {
    field.number: field.name for field in pb.Frame.DESCRIPTOR.fields if 50 <= field.number < 100
}
"""Number of a kind -> its name."""
DOCUMENT_STARTS = pb.Frame.DOCUMENT_STARTS_FIELD_NUMBER
LOSS_MASK = pb.Frame.LOSS_MASK_FIELD_NUMBER
TOKEN_COUNTS = pb.Frame.TOKEN_COUNTS_FIELD_NUMBER
REDACTED = pb.Frame.REDACTED_FIELD_NUMBER

NO_FINGERPRINT = bytes(32)
"""That of TOKEN_COUNTS and REDACTED, which follow from the identity."""


def require_known(kinds: Iterable[int]) -> None:
    """Raise InvalidRequest unless these are kinds of planes, in ascending order and unique."""
    kinds = list(kinds)
    for kind in kinds:
        if kind not in KINDS:
            known = ", ".join(f"{number} ({name})" for number, name in KINDS.items())
            raise InvalidRequest("planes", f"{kind} is not a kind of plane; there are {known}")
    # One pair is named: a list of thousands would not fit into a refusal.
    for kind, following in pairwise(kinds):
        if kind >= following:
            problem = f"{following} follows {kind}; kinds must ascend, without duplicates"
            raise InvalidRequest("planes", problem)
