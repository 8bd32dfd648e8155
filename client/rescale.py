"""Where a state goes on at another context length. Pure.

Another context length cuts the corpus into other windows, and a shuffled order goes through them in
another permutation: at a fraction f of an epoch, a fraction f of what follows in it was seen
already. Only between two epochs nothing is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tokenfeed import orders
from tokenfeed.errors import SamplesExhausted, StreamMismatch
from tokenfeed.position import SAMPLE_END

from .state import MID_EPOCH, StreamParts

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
    allow: Collection[str],
) -> int:
    """Return the sample at the same fraction of the same epoch, rounded down.

    sample: of the saved stream, above 0.  windows_before: in an epoch at the saved context length;
    None or 0 where the corpus is another one, so that nobody knows.  windows_now: at one's own.
    Where the fraction is unknown the sample stays what it is.
    Raises: StreamMismatch in the middle of an epoch that is shuffled, unless allow has "mid_epoch";
    SamplesExhausted.
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
            "resumed at another context length and on another corpus: an unknown part of the epoch "
            "may repeat sample=%d",
            sample,
        )
        return sample
    epoch, into = divmod(sample, windows_before)
    found = epoch * windows_now + into * windows_now // windows_before
    percent = f"{100 * into / windows_before:.4g} %"
    if found > SAMPLE_END:
        raise SamplesExhausted("state.sample", f"{found} at this context length is above 2^63")
    if into == 0 or _in_corpus_order(saved, own):
        _LOG.warning(
            "resumed at another context length, nothing repeats: epoch=%d seen=%s sample=%d",
            *(epoch, percent, found),
        )
    elif MID_EPOCH in allow:
        _LOG.warning(
            "resumed at another context length: of what follows in epoch=%d, %s may repeat "
            "sample=%d",
            *(epoch, percent, found),
        )
    else:
        raise StreamMismatch(
            "context_length",
            f"the state was saved with {saved.context_length}, {percent} into epoch {epoch}, and "
            f"{own.context_length} is another permutation: {percent} of what follows in that epoch "
            f"was seen already. Pass start_sample={(epoch + 1) * windows_now} instead of the state "
            f"to begin with epoch {epoch + 1}, or {_permission(allow)} to go on all the same",
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
