"""Whether a stream is the one that a request expects: identity and digests of its datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenfeed.errors import StreamMismatch
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stage import Corpus
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Expected

from ..datasets.dataset import Dataset, corpora_of

_IDENTITIES_KEPT = 64


def require_stream(stream: Stream, expected: Expected, datasets: Sequence[Dataset]) -> bytes:
    """Return the identity of the rows of a stage, 32 bytes.

    stream: of one stage; all its redactions are in force.  datasets: of each source.

    Raises: StreamMismatch if it is not the expected one, or if a dataset has another digest;
    InvalidRequest; Unreadable while rows of documents are being made.
    """
    identity = _identity(stream, corpora_of(stream, datasets))
    require_expected(
        "expected_identity",
        expected.identity,
        identity,
        "this stream's identity, {}: corpus, order, seed, context length or stages differ",
    )
    for dataset, digest in zip(datasets, expected.digests, strict=False):
        require_expected(
            "expected_digest",
            digest,
            dataset.digest,
            f"the digest of {dataset.name}, {{}}: the content differs",
        )
    return identity


@lru_cache(_IDENTITIES_KEPT)
def _identity(stream: Stream, corpora: tuple[Corpus, ...]) -> bytes:
    """Return the identity of a stream; its calls have the same one."""
    known = stream.known(dict(zip(stream.numbers, corpora, strict=True)))
    return known.identity(SAMPLE_END - 1)


def require_expected(field: str, expected: bytes, actual: bytes, what: str) -> None:
    """Raise StreamMismatch if two hashes of 32 bytes are known and differ."""
    if expected and actual and expected != actual:
        raise StreamMismatch(field, f"{expected.hex()} is not {what.format(actual.hex())}")
