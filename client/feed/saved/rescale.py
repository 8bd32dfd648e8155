"""Where a state resumes at another context length. Pure.

Another context length cuts the corpus into other windows, and a shuffled order visits them in
another permutation. After a fraction f of an epoch, a fraction f of the rest was already seen.
Nothing repeats only between two epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tokenfeed.errors import SamplesExhausted, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stages import MIXTURE

from .comparing import MID_EPOCH

_LOG = logging.getLogger("tokenfeed.client")


def is_rescaled(sample: int, saved: StreamParts, own: StreamParts) -> bool:
    """Return whether a saved sample index has to be converted: not sample 0, and not for an order
    without epochs.
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
    """Return the sample at the same fraction of the same epoch, rounded down; for `sequential` over
    one file, the sample at the same token.

    sample: of the saved stream, above 0.  windows_before: per epoch at the saved context length;
    None or 0 if unknown: the corpus differs, or has no window of that length.  windows_now: per
    epoch at the own context length.  file_count: of the corpus.
    If the fraction is unknown, the sample index is kept.
    Raises: StreamMismatch in the middle of an epoch that would repeat or skip windows, unless allow
    contains "mid_epoch"; SamplesExhausted.
    """
    if not windows_before:
        if MID_EPOCH not in allow:
            raise StreamMismatch(
                "context_length",
                f"the state was saved with {saved.context_length}, but this stream has "
                f"{own.context_length}. The seen part of the epoch is unknown: this corpus is "
                "another one, or has no window of the saved length. Pass start_sample= instead of "
                f"the state to choose where to begin, or {_permission(allow)} to resume at sample "
                f"{sample}",
            )
        _LOG.warning(
            "resumed at another context length, an unknown part of the epoch may repeat or be "
            "skipped sample=%d",
            sample,
        )
        return sample
    epoch, seen_windows = divmod(sample, windows_before)
    in_order = _in_corpus_order(saved, own)
    if in_order and file_count == 1:
        own_seen_windows = seen_windows * saved.context_length // own.context_length
    else:
        own_seen_windows = seen_windows * windows_now // windows_before
    own_sample = epoch * windows_now + own_seen_windows
    percent = f"{100 * seen_windows / windows_before:.4g} %"
    if own_sample > SAMPLE_END:
        raise SamplesExhausted("state.sample", f"{own_sample} at this context length is above 2^63")
    if seen_windows == 0:
        problem = "nothing repeats"
    elif in_order and file_count == 1:
        problem = f"less than {own.context_length} tokens repeat"
    elif in_order:
        problem = (
            f"each of the {file_count} files is cut into other windows, so part of the rest of "
            "that epoch was already seen, and part is skipped"
        )
    else:
        problem = f"it is another permutation: {percent} of the rest of that epoch was already seen"
    if not (seen_windows == 0 or (in_order and file_count == 1) or MID_EPOCH in allow):
        raise StreamMismatch(
            "context_length",
            f"the state was saved with {saved.context_length}, {percent} into epoch {epoch}, but "
            f"this stream has {own.context_length}; {problem}. Pass "
            f"start_sample={(epoch + 1) * windows_now} instead of the state to begin with epoch "
            f"{epoch + 1}, or {_permission(allow)} to resume anyway",
        )
    _LOG.warning(
        "resumed at another context length saved=%d now=%d epoch=%d seen=%s sample=%d: %s",
        *(saved.context_length, own.context_length, epoch, percent, own_sample, problem),
    )
    return own_sample


def _has_epochs(order: str) -> bool:
    """Return whether an order has epochs; an unknown order is assumed to have them."""
    if order == MIXTURE:
        return False
    known = orders.ORDERS.get(order)
    return known is None or known.HAS_EPOCHS


def _in_corpus_order(saved: StreamParts, own: StreamParts) -> bool:
    known = orders.ORDERS.get(own.order)
    return saved.order == own.order and known is not None and not known.USES_SEED


def _permission(allow: Collection[str]) -> str:
    return f"allow={(*sorted(allow), MID_EPOCH)!r}"
