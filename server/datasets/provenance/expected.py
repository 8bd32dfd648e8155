"""Whether a stream is the one that a request expects: identity and digests of its datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenfeed.errors import StreamMismatch
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import Expected

from ..dataset import Dataset, corpora_of

_IDENTITIES_KEPT = 64


def require_stream(spec: StreamSpec, expected: Expected, datasets: Sequence[Dataset]) -> bytes:
    """Return the identity of a stream, 32 bytes.  datasets: of each source.

    Raises: StreamMismatch if it is not the expected one, or if a dataset has another digest;
    InvalidRequest; Unreadable while rows of documents are being made.
    """
    if expected.identity and expected.identity_version != spec.identity_version:
        raise StreamMismatch(
            "identity_version",
            f"{expected.identity_version} is not that of this request, {spec.identity_version}",
        )
    identity = _identity(spec, corpora_of(spec, datasets))
    require_expected(
        "expected_identity",
        expected.identity,
        identity,
        "this stream's identity, {}: corpus, order, seed, context length or mixture differs",
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
def _identity(spec: StreamSpec, corpora: tuple[Corpus, ...]) -> bytes:
    """Return the identity of a stream; its calls have the same one."""
    return spec.identity(corpora)


def require_expected(field: str, expected: bytes, actual: bytes, what: str) -> None:
    """Raise StreamMismatch if two hashes of 32 bytes are known and differ."""
    if expected and actual and expected != actual:
        raise StreamMismatch(field, f"{expected.hex()} is not {what.format(actual.hex())}")
