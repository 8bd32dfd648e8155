"""The count of exchanges: of files that this process reads from in place of others, since tokens of
those were erased (`tokenfeed redact --erase`).

It keeps what an erasure promises: once a file without its erased tokens is read, each row that
needs one of them is refused, or has what its redaction puts there. No row has what lies on the
disk in its place. In five steps:

1. The command writes to the list which tokens are erased, before it changes a file
   (tools/redact/erasing.py). Streams look at the list again and again (rows/reader.py).
2. It renames a whole new file over each old one (local/replacing.py). A server still has the old
   one open, and reads that.
3. A server finds the new file when it polls (local/watched_bytes.py). It reads the list first, and
   takes the file up only if it has the hash that the list says (redactions/replaced_shards.py).
4. It counts here, and only then reads from the new file (`WatchedBytes._exchange`).
5. A stream compares the counts before and after it has gathered rows (`RowReader.is_current`). If
   they differ, it looks at the list; if that says more than before, it gathers the rows again.
"""

from __future__ import annotations

import threading


class Exchanges:
    """How often a file of this process was exchanged for one without its erased tokens."""

    def __init__(self) -> None:
        """Count from 0."""
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one that begins."""
        with self._lock:
            self.count += 1


EXCHANGES = Exchanges()
