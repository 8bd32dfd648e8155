"""Loss masks next to shards: X.ds.loss says for each token of X.ds whether it is learned.

They are not served yet. A model that learns prompts like responses seems fine for a long time, so a
server refuses datasets with masks unless the command line allows it to ignore them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus

from ..runtime.exceptions import log_safe_name
from ..storage.formats.datatrove import SUFFIX
from .manifest import ManifestSplit
from .sources import DatasetSource

_LOG = logging.getLogger("tokenfeed.server")
OPTION = "--ignore-loss-mask"


def mask_path(shard_path: str) -> str:
    """Return the path of a shard's mask, if it has one."""
    return f"{shard_path}.loss"


def masks_beside(paths: Sequence[str]) -> list[str]:
    """Return the masks that exist next to shards, or next to the targets of links, in order."""
    found = []
    for path in paths:
        places = [path for path in (path, os.path.realpath(path)) if path.lower().endswith(SUFFIX)]
        found += [mask_path(place) for place in places if os.path.lexists(mask_path(place))][:1]
    return found


def require_none(source: DatasetSource, *, ignored: bool) -> None:
    """Refuse a dataset that has masks, or warn if they are ignored on purpose.

    Raises: InvalidCorpus, with the path of the first mask.
    """
    masks = masks_beside(source.paths)
    if masks and not ignored:
        raise InvalidCorpus(
            masks[0],
            f"the loss mask of dataset {source.name!r} would be ignored, so that prompts are "
            f"learned like responses; pass {OPTION} to accept that",
        )
    if masks:
        _LOG.warning(
            "loss mask ignored dataset=%s files=%d first=%s: prompts are learned like responses",
            source.name,
            len(masks),
            log_safe_name(masks[0]),
        )


def require_listed(split: ManifestSplit) -> None:
    """Raise InvalidCorpus unless each mask of a manifest exists and has the listed size."""
    for path, size_bytes in split.loss_masks:
        try:
            found = os.stat(path).st_size
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        else:
            if found == size_bytes:
                continue
            problem = f"has {found} bytes, not {size_bytes}"
        cure = "restore this loss mask, or remove the folder and ingest again"
        raise InvalidCorpus(path, f"is listed in its manifest, but {problem}; {cure}")
