"""Where a state goes on at another context length. Pure.

Another context length cuts the corpus into other windows, and a shuffled order goes through them in
another permutation: at a fraction f of an epoch, a fraction f of what follows in it was seen
already. Only between two epochs nothing is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tokenfeed.errors import SamplesExhausted, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.spec import StreamParts

from .state import MID_EPOCH

_LOG = logging.getLogger("tokenfeed.client")


def is_rescaled(sample: int, saved: StreamParts, own: StreamParts) -> bool:
    """Return whether a saved sample is another one here: not at the beginning, nor where windows
    are drawn without end.
    """
    return (
        sample > 0
        and saved.context_length != own.context_length
        and _has_epochs(saved.order)
        and _has_epochs(own.order)
    )


def rescaled(
    sample: int,
    saved: StreamParts,
    own: StreamParts,
    windows_before: int | None,
    windows_now: int,
    file_count: int,
    allow: Collection[str],
) -> int:
    """Return the sample at the same fraction of the same epoch, rounded down; in the order of a
    corpus of one file, that at the same token.

    sample: of the saved stream, above 0.  windows_before: in an epoch at the saved context length;
    None or 0 where nobody knows, since the corpus is another one, or has no window of that length.
    windows_now: at one's own.  file_count: of the corpus.
    Where the fraction is unknown the sample stays what it is.
    Raises: StreamMismatch in the middle of an epoch that would repeat or leave out windows, unless
    allow has "mid_epoch"; SamplesExhausted.
    """
    if not windows_before:
        if MID_EPOCH not in allow:
            raise StreamMismatch(
                "context_length",
                f"the state was saved with {saved.context_length}, and this stream has "
                f"{own.context_length}: how much of the epoch was seen cannot be known, for this "
                "corpus is another one, or has no window of that length. Pass start_sample= "
                "instead of the state to say where to begin, or "
                f"{_permission(allow)} to go on with sample {sample}",
            )
        _LOG.warning(
            "resumed at another context length: an unknown part of the epoch may repeat, or be "
            "left out sample=%d",
            sample,
        )
        return sample
    epoch, into = divmod(sample, windows_before)
    in_order = _in_corpus_order(saved, own)
    if in_order and file_count == 1:
        found_into = into * saved.context_length // own.context_length
    else:
        found_into = into * windows_now // windows_before
    found = epoch * windows_now + found_into
    percent = f"{100 * into / windows_before:.4g} %"
    if found > SAMPLE_END:
        raise SamplesExhausted("state.sample", f"{found} at this context length is above 2^63")
    if into == 0:
        problem = "nothing repeats"
    elif in_order and file_count == 1:
        problem = f"less than {own.context_length} tokens repeat"
    elif in_order:
        problem = (
            f"of each of the {file_count} files it makes other windows, so that some of what "
            "follows in that epoch was seen already, or is left out"
        )
    else:
        problem = (
            f"it is another permutation: {percent} of what follows in that epoch was seen already"
        )
    if not (into == 0 or (in_order and file_count == 1) or MID_EPOCH in allow):
        raise StreamMismatch(
            "context_length",
            f"the state was saved with {saved.context_length}, {percent} into epoch {epoch}, and "
            f"this stream has {own.context_length}; {problem}. Pass "
            f"start_sample={(epoch + 1) * windows_now} instead of the state to begin with epoch "
            f"{epoch + 1}, or {_permission(allow)} to go on all the same",
        )
    _LOG.warning(
        "resumed at another context length, %d instead of %d: %s; epoch=%d seen=%s sample=%d",
        *(own.context_length, saved.context_length, problem, epoch, percent, found),
    )
    return found


def _has_epochs(order: str) -> bool:
    """Return whether an order has epochs; one that is not known here may."""
    known = orders.ORDERS.get(order)
    return known is None or known.HAS_EPOCHS


def _in_corpus_order(saved: StreamParts, own: StreamParts) -> bool:
    known = orders.ORDERS.get(own.order)
    return saved.order == own.order and known is not None and not known.USES_SEED


def _permission(allow: Collection[str]) -> str:
    return f"allow={(*sorted(allow), MID_EPOCH)!r}"
