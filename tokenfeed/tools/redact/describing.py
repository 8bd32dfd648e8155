"""What an operator is told of the lists of a dataset."""

from __future__ import annotations

import os

from tokenfeed.server.datasets.redactions.list_file import RedactionLists
from tokenfeed.server.datasets.redactions.overlay import files_left
from tokenfeed.server.storage.store import TokenStore


def describe_lists(lists: RedactionLists | None, store: TokenStore) -> list[str]:
    """Return lines about the latest list and about what was erased; none if there is no list.

    store: of the files, of which the erased ranges are read.  Raises: InvalidCorpus.
    """
    content = None if lists is None else lists.content
    if lists is None or content is None:
        return []
    latest = lists.find(content.additions[-1].list_hash)
    assert latest is not None
    lines = [
        f"redactions: {latest.ranges.token_count:,} tokens in {len(latest.ranges):,} range(s), "
        f"replaced by token {content.fill}, in {lists.path}",
        f"redaction list: {latest.hash.hex()}",
    ]
    if (erasure := content.erasure) is not None:
        erased = f"{erasure.ranges.token_count:,} tokens of list {erasure.list_hash.hex()}"
        lines.append(f"erased: {erased}, at {erasure.when}")
        if left := files_left(store, content):
            first = os.path.basename(store.shards[left[0].file].path)
            some = first if len(left) == 1 else f"{first} and {len(left) - 1:,} more"
            lines.append(f"not erased in these files: {some}: run tokenfeed redact --erase on them")
        lines.append("fingerprint and digest are those before tokens were erased")
    return lines
