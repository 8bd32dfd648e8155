"""What an operator is told of the lists of a dataset."""

from __future__ import annotations

from .list_content import ListContent
from .list_file import RedactionLists


def described_lists(lists: RedactionLists | None, content_digest: bytes = b"") -> list[str]:
    """Return lines about the latest list and about what was erased; none if there is no list.

    content_digest: of the files as they are now, 32 bytes; b"" if it is unknown.
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
        state = f"at {erasure.when}" if erasure.is_done else "not finished"
        lines.append(f"erased: {erased}, {state}")
        if (here := _erased_here(lists, content, content_digest)) != erasure.list_hash:
            some = (
                f"erased in these files: only list {here.hex()}"
                if here
                else "not erased in these files"
            )
            lines.append(f"{some}: run tokenfeed redact --erase on them")
        lines.append("fingerprint and digest are those before tokens were erased")
    return lines


def _erased_here(lists: RedactionLists, content: ListContent, content_digest: bytes) -> bytes:
    """Return the hash of the list whose tokens are erased in the files; b"" if none are."""
    by_digest = {each.digest: each.list_hash for each in content.states if each.digest}
    if content_digest in by_digest:
        return by_digest[content_digest]
    return lists.erased.hash if lists.erased is not None else b""
