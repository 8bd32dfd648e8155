"""The size of `cu_seqlens_fixed`: the least that no batch exceeds, and a check before the training.

Pure arithmetic, so that a feed refuses a size when it opens.
"""

from __future__ import annotations

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import require_range

INT32_END = 1 << 31


def least_size(
    batch_size: int,
    context_length: int,
    *,
    max_seqlen: int | None = None,
    row_documents_max: int | None = None,
) -> int:
    """Return the least size of `cu_seqlens_fixed` that no batch exceeds.

    max_seqlen: in [1, 2^31), by default T.  row_documents_max: limit of documents in the x of a
    row, padding included. None: T, since each token may begin a document; the size is then
    B * T + 1, whatever max_seqlen is.

    A row of at most D documents has the most pieces if all but one of them have one token: that one
    has T - D + 1. So a row has at most D + (T - D) // max_seqlen, and the batch ends with one more
    entry.  Raises: InvalidRequest.
    """
    if max_seqlen is None:
        max_seqlen = context_length
    require_range("max_seqlen", max_seqlen, 1, INT32_END)
    documents = context_length
    if row_documents_max is not None:
        require_range("row_documents_max", row_documents_max, 1, INT32_END)
        documents = min(documents, row_documents_max)
    pieces = documents + (context_length - documents) // max_seqlen
    return batch_size * pieces + 1


def require_size(
    size: int,
    batch_size: int,
    context_length: int,
    *,
    max_seqlen: int | None = None,
    row_documents_max: int | None = None,
) -> None:
    """Raise InvalidRequest if a batch could exceed this size of `cu_seqlens_fixed`: before the
    training, instead of at step 41,000. The rest: as for `least_size`.
    """
    least = least_size(
        batch_size, context_length, max_seqlen=max_seqlen, row_documents_max=row_documents_max
    )
    if size < least:
        raise InvalidRequest(
            "size",
            f"{size} is too small for a batch of {batch_size} x {context_length}; "
            + size_cure(batch_size, context_length, max_seqlen, row_documents_max),
        )
    require_range("size", size, least, INT32_END)


def size_cure(
    batch_size: int, context_length: int, max_seqlen: int | None, row_documents_max: int | None
) -> str:
    """Return which size to pass instead of one that is too small. As for `least_size`."""
    least = least_size(
        batch_size, context_length, max_seqlen=max_seqlen, row_documents_max=row_documents_max
    )
    if row_documents_max is None:
        return f"pass at least {least}, which no batch exceeds: each token may begin a document"
    limit = f"no batch exceeds with {row_documents_max} documents a row"
    return f"pass at least {least}, which {limit}"
