"""The work on a unit, in whatever process does it: rows that are not read yet are read, and all are
encoded.
"""

from __future__ import annotations

from dataclasses import replace

from .tokenize.encoding import EncodedUnit, concat, encode_unit
from .tokenize.recipe import Recipe
from .units import Unit, UnreadRows


def read_and_encode(unit: Unit, recipe: Recipe) -> EncodedUnit:
    """Return the tokens of a unit; of rows that became much text, those of the first part.

    Raises: InvalidSource if it cannot be read, or a text chunk cannot be encoded.
    """
    if not isinstance(unit.content, UnreadRows):
        return encode_unit(unit, recipe)
    # This imports pyarrow, which other machines need not have: their rows are read already.
    from .inputs.parquet import read

    last, parts = unit, [encode_unit(replace(unit, content=None), recipe)]
    for last in read(unit, recipe):
        parts.append(encode_unit(last, recipe))
    if last.end == unit.end:
        return concat(parts)
    return replace(concat(parts), read=replace(last, place=unit.place, content=None))
