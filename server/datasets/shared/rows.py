"""Rows over documents, made once by all processes of a machine that open the same files.

Eight ranks of a node would each pack the same corpus. Here the first one does, and keeps the rows;
the others wait for it, and find them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from tokenfeed.sampling.document_rows import RowsKey

from ...runtime.shared_lock import ROWS_SUFFIX, locked, remove_unused
from ...storage.rows import RowIndex, RowIndices

_DOCUMENTS_MIN = 1 << 17
"""Rows of fewer documents are made in a tenth of a second, sooner than their lock is found."""


def rows_once(indices: RowIndices, key: RowsKey, stopped: Callable[[], bool]) -> RowIndex:
    """Return an index, found or made in this thread or in another process.

    stopped: whether to stop, which raises InvalidCorpus.  Raises: TokenfeedError.
    """
    index = indices.found_now(key)
    job = indices.job(key)
    if index is None and job.paths and job.borders.count >= _DOCUMENTS_MIN:
        # The folder may be that of all machines of a cluster.
        parts = (os.uname().nodename, *map(os.path.abspath, job.paths), job.fingerprint.hex())
        name = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]
        with locked("rows", name + ROWS_SUFFIX, stopped) as lock:
            index = indices.found_now(key)
            # Else no folder took what another process made: all make their own at the same time.
            if index is None and lock is not None and not lock.was_waited_for:
                index = indices.make_now(key, lock.touching(stopped))
                remove_unused()
    return index or indices.make_now(key, stopped)
