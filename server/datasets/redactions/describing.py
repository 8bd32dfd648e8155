"""What an operator is told of the lists of a dataset."""

from __future__ import annotations

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
        if content_digest and content_digest == erasure.original_digest:
            lines.append("not erased in these files: run tokenfeed redact --erase on them")
        lines.append("fingerprint and digest are those before tokens were erased")
    return lines
