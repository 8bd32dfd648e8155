"""Errors come out of a server's status and message as they went in."""

from __future__ import annotations

import pickle

import pytest

from tokenfeed.errors import CorpusChanged, CorpusError, Deleted, from_status


@pytest.mark.parametrize(
    "error",
    [
        Deleted.of("web", "train-0003.bin", 1200, 1300),
        CorpusChanged("dataset", "'web' changed while it was served; restart its server"),
        CorpusChanged("dataset", "'tokens-were-deleted' changed while it was served"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_deleted_tokens_are_told_from_changed_files(error: CorpusError) -> None:
    """Both are DATA_LOSS. One is cured by a redaction, the other by whole files."""
    found = from_status(error.status, str(error))

    assert (type(found), str(found)) == (type(error), str(error))
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (type(error), str(error))


def test_deleted_tokens_are_named_and_so_is_the_cure() -> None:
    """A long name is cut: the message has to fit into a header."""
    error = Deleted.of("web", "x" * 200, 5, 7)

    assert str(error) == (
        f"dataset: 'web': tokens were deleted that this row needs ({'x' * 64}, tokens [5, 7)); "
        "read with a redaction of them in force, or from a replica that still has them"
    )
