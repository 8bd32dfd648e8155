"""Whether a saved state is of the stream of a feed, and what a user allows to differ. Pure."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.stream.parts import StreamParts

from ...runtime.arguments import shown
from ...stream.wanted_planes import PLANE_NAMES
from .state import COMPARED, Planes

_LOG = logging.getLogger("tokenfeed.client")

MID_EPOCH = "mid_epoch"
"""Not a part of a stream, but a permission to change the context length in the middle of an epoch
(rescale.py).
"""
MIXTURE = "mixture"
"""A permission to go on with other weights, by a stage that is appended at the saved sample."""
PLANES = "planes"
"""A permission to go on with other targets."""
REDACTIONS = "redactions"
"""A permission to go on with redactions that the rows before the saved sample had not, or without
those of another corpus."""


def require_known_permissions(allow: Collection[str]) -> None:
    """Raise InvalidRequest unless these are parts of a stream, MID_EPOCH, MIXTURE, PLANES and
    REDACTIONS.
    """
    known = (*COMPARED, MID_EPOCH, MIXTURE, PLANES, REDACTIONS)
    is_collection = isinstance(allow, (tuple, list, set, frozenset))
    if not is_collection or not all(part in known for part in allow):
        raise InvalidRequest("allow", f"{shown(allow)} is not a collection of {', '.join(known)}")


def require_same_stream(saved: StreamParts, own: StreamParts, allow: Collection[str]) -> None:
    """Compare the stream of a state with the feed's own, unless both are mixtures.

    allow: parts that may differ, MID_EPOCH, MIXTURE, PLANES and REDACTIONS.
    Raises: StreamMismatch, naming what differs; InvalidRequest if allow contains anything else.
    """
    require_known_permissions(allow)
    if saved.stages and not own.stages:
        names = ", ".join(source.dataset for source in saved.sources)
        raise StreamMismatch("mixture", f"the state is of a mixture of {names}; pass mixture=")
    if own.stages and not {"order", "fingerprint"} <= set(allow):
        problem = "the state is of one dataset; pass dataset= in place of mixture="
        cure = "allow=('order', 'seed', 'fingerprint') to begin the mixture at its sample"
        raise StreamMismatch("mixture", f"{problem}, or {cure}")
    for name in COMPARED:
        before, now = getattr(saved, name), getattr(own, name)
        if name == "pieces" and _differ(saved, own, COMPARED[:-1]):
            continue  # of other rows anyway, which were allowed
        if name == "long_documents" and saved.order != own.order:
            continue
        if before != now and name not in allow:
            cure = f"Pass {name}={before!r}"
            if name == "fingerprint":
                cure = "Pass a server and a dataset with that corpus"
            elif name == "pieces":
                cure = "Pass a server with the same document borders"
            elif name == "long_documents":
                cure = f"Pass long={before!r}"
            raise StreamMismatch(
                name,
                f"the state was saved with {before}, but this stream has {now}, so its samples "
                f"differ. {cure}, or allow=({name!r},) to go on with other samples",
            )


def _differ(saved: StreamParts, own: StreamParts, names: Sequence[str]) -> bool:
    return any(getattr(saved, name) != getattr(own, name) for name in names)


def differences(saved: StreamParts, own: StreamParts) -> list[str]:
    """Return what to log of how the resumed stream differs from the saved one."""
    return [
        f"resumed on another stream part={name} saved={before} now={now}"
        for name in COMPARED
        if (before := getattr(saved, name)) != (now := getattr(own, name))
        and not (name == "fingerprint" and saved.stages)
    ]


def require_same_planes(
    saved: Planes,
    own: Planes,
    *,
    datasets: Collection[str],
    wanted: Collection[int],
    allow: Collection[str],
) -> None:
    """Compare the planes that mask targets.

    datasets: to compare, of `same_corpora`.  wanted: kinds that the feed reads where a dataset has
    them.  allow: as for `require_same_stream`.
    Raises: StreamMismatch, naming dataset and plane, if a plane is another one or gone. If the feed
    does not want it, or if the state has none, this is logged.
    """
    for key in sorted({*saved, *own}):
        dataset, kind = key
        before, now = saved.get(key), own.get(key)
        if before == now or dataset not in datasets:
            continue
        name = PLANE_NAMES.get(kind, f"plane {kind}")
        of = f" of dataset {dataset!r}" if dataset else ""
        if before is not None and kind in wanted and PLANES not in allow:
            raise StreamMismatch(
                PLANES,
                f"the state was saved with {name} {before}{of}, but this stream has "
                f"{now or 'none'}, so its targets differ. Pass a server with these files, or "
                f"allow=({PLANES!r},) to go on with other targets",
            )
        _LOG.warning("resumed with other targets plane=%r saved=%s now=%s%s", name, before, now, of)
