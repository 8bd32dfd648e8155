"""Loss masks beside shards: X.ds.loss says of each token of X.ds whether it is to be learned.

They are not served yet. A model that learns prompts like responses looks well for a long time, so a
server that would ignore masks does not start until somebody says that this is meant.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus

from ..runtime.exceptions import log_safe_name
from ..storage.formats.datatrove import SUFFIX
from .manifest import ManifestSplit
from .sources import Source

_LOG = logging.getLogger("tokenfeed.server")
_OPTION = "--ignore-loss-mask"


def mask_path(shard_path: str) -> str:
    """Return where the mask of a shard lies, if it has one."""
    return f"{shard_path}.loss"


def masks_beside(paths: Sequence[str]) -> list[str]:
    """Return the masks that lie beside shards, or beside what they are links to, in order."""
    found = []
    for path in paths:
        places = [path for path in (path, os.path.realpath(path)) if path.lower().endswith(SUFFIX)]
        found += [mask_path(place) for place in places if os.path.lexists(mask_path(place))][:1]
    return found


def require_none(source: Source, *, ignored: bool) -> None:
    """Refuse a dataset whose masks would be ignored, or warn if they are ignored on purpose.

    Raises: InvalidCorpus, naming the first mask.
    """
    masks = masks_beside(source.paths)
    if masks and not ignored:
        raise InvalidCorpus(
            masks[0],
            f"the loss mask of dataset {source.name!r} would be ignored, and prompts learned like "
            f"responses; pass {_OPTION} if that is meant",
        )
    if masks:
        _LOG.warning(
            "ignored the loss mask dataset=%s files=%d first=%s: prompts are learned like "
            "responses",
            source.name,
            len(masks),
            log_safe_name(masks[0]),
        )


def require_listed(made: ManifestSplit) -> None:
    """Raise InvalidCorpus unless each mask that a manifest lists is there, as long as it was."""
    for path, size_bytes in made.loss_masks:
        try:
            found = os.stat(path).st_size
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        else:
            if found == size_bytes:
                continue
            problem = f"has {found} bytes, not {size_bytes}"
        cure = "restore this loss mask, or remove the folder and ingest anew"
        raise InvalidCorpus(
            path, f"is damaged, since its manifest lists it and it {problem}; {cure}"
        )
