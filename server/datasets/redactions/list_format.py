"""The content of a list file: lines of JSON, which a person can read. Knows no file.

    {"tokenfeed_redactions": 1, "fingerprint": HEX, "fill": 0}
    {"ranges": [[FILE, FIRST, END], ...], "when": TIME, "reason": TEXT, "delimiters": [TOKEN, ...],
     "list": HEX}                                                                    any number
    {"erasure": HEX, ...}                                                           at most one
    {"sha256": HEX}

Each line with ranges adds to the list, and records the hash that the list has from then on. The
last line has the SHA-256 of those before it, so that a damaged file is found.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from .ranges import RedactionList, TokenRanges

VERSION = 1
RANGES_MAX = 1_000_000
"""Of all additions together. They are a file of 23 MB, which takes 1.8 s to read and check. 2
shared cores, 2026-11."""
ADDITIONS_MAX = 4096
"""Each has a hash of its own in every description of the dataset."""
BYTES_MAX = 1 << 27
REASON_CHARACTERS_MAX = 1000


class DamagedList(ValueError):
    """Content that is no list. Its text follows "it"."""


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Ranges that were added at once.

    when: UTC, ISO 8601.  list_hash: of the list with these ranges and all before them.
    delimiters: tokens between documents, where the command was told them.
    """

    ranges: TokenRanges
    when: str
    reason: str
    list_hash: bytes
    delimiters: tuple[int, ...] = ()


class ErasedFile(NamedTuple):
    """A file that an erasure replaces.

    file: its number.  fingerprint: that the new file would have as a dataset of its own, 32 bytes.
    """

    file: int
    fingerprint: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Erasure:
    """Tokens that are erased, whether or not all files are replaced yet.

    list_hash: of the list whose tokens they are.  ranges: those of the list, but for delimiters of
    documents.  fingerprint: of the content with these ranges overwritten, 32 bytes.  digest:
    likewise, 32 bytes.  original_digest: before any erasure; both b"" if it was not known.
    token_max: the greatest token that is erased.  delimiters: tokens that are left.  files: one
    for each file with ranges, in order.  when: it began, UTC, ISO 8601.
    """

    list_hash: bytes
    ranges: TokenRanges
    fingerprint: bytes
    digest: bytes
    original_digest: bytes
    token_max: int
    delimiters: tuple[int, ...]
    files: tuple[ErasedFile, ...]
    when: str

    def of_file(self, file: int) -> ErasedFile | None:
        """Return what is known of a file; None if the erasure does not replace it."""
        place = bisect_left(self.files, file, key=attrgetter("file"))
        found = self.files[place : place + 1]
        return found[0] if found and found[0].file == file else None


@dataclass(frozen=True, slots=True, eq=False)
class ListContent:
    """What a list file holds.

    fingerprint: of the dataset before any erasure, 32 bytes.  fill: the token that replaces others.
    additions: at least one.  erasure: of the tokens of a list, with all that were erased before;
    None if there was none.
    """

    fingerprint: bytes
    fill: int
    additions: tuple[Addition, ...]
    erasure: Erasure | None = None

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Of the list after each addition."""
        return tuple(addition.list_hash for addition in self.additions)

    def list_of(self, count: int) -> RedactionList:
        """Return the list after its first additions.  Raises: DamagedList for another hash."""
        first, *others = (addition.ranges for addition in self.additions[:count])
        found = RedactionList.of(self.fill, first.union(*others))
        if found.hash != self.additions[count - 1].list_hash:
            raise DamagedList(f"has a wrong hash for the list of addition {count}")
        return found

    @property
    def delimiters(self) -> tuple[int, ...]:
        """Those that were named last when ranges were added; none if none ever were."""
        named = (addition.delimiters for addition in reversed(self.additions))
        return next(filter(None, named), ())

    def with_addition(
        self, ranges: TokenRanges, when: str, reason: str = "", delimiters: tuple[int, ...] = ()
    ) -> ListContent:
        """Return it with more ranges; itself if they add no token.

        Raises: ValueError if it would be too large, which follows "the list".
        """
        before = [addition.ranges for addition in self.additions]
        found = RedactionList.of(self.fill, ranges.union(*before))
        if before and found.hash == self.additions[-1].list_hash:
            return self
        if len(before) == ADDITIONS_MAX:
            cure = "add more documents or ranges at once"
            raise ValueError(f"already has {ADDITIONS_MAX} additions, the limit; {cure}")
        range_count = len(ranges) + sum(map(len, before))
        if range_count > RANGES_MAX:
            raise ValueError(f"would have {range_count} ranges; the limit is {RANGES_MAX}")
        addition = Addition(ranges, when, reason, found.hash, delimiters)
        return replace(self, additions=(*self.additions, addition))

    def to_bytes(self) -> bytes:
        """Return the file.  Raises: ValueError if it is too large, which follows "the list"."""
        lines = [
            {
                "tokenfeed_redactions": VERSION,
                "fingerprint": self.fingerprint.hex(),
                "fill": self.fill,
            },
            *map(_addition_line, self.additions),
            *([] if self.erasure is None else [_erasure_line(self.erasure)]),
        ]
        body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        content = body + _seal(body)
        if len(content) > BYTES_MAX:
            cure = "serve the files as several datasets, with a list each"
            raise ValueError(f"would have {len(content)} bytes; the limit is {BYTES_MAX}; {cure}")
        return content

    @classmethod
    def parse(cls, content: bytes) -> ListContent:
        """Read a file.  Raises: DamagedList."""
        body_end = content.rfind(b"\n", 0, len(content) - 1) + 1
        if not body_end or content[body_end:] != _seal(content[:body_end]):
            raise DamagedList("is damaged")
        try:
            first, *lines = map(json.loads, content[:body_end].splitlines())
            if first["tokenfeed_redactions"] != VERSION:
                raise DamagedList(f"is of another version than {VERSION}")
            erasures = [_erasure_of(line) for line in lines if "erasure" in line]
            additions = [_addition_of(line) for line in lines if "erasure" not in line]
            fingerprint, fill = _hash(first["fingerprint"]), _number(first["fill"])
        except DamagedList:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise DamagedList("is damaged") from error
        hashes = [addition.list_hash for addition in additions]
        if not hashes or len(set(hashes)) < len(hashes) or len(erasures) > 1:
            raise DamagedList("is damaged")
        if len(hashes) > ADDITIONS_MAX or sum(len(one.ranges) for one in additions) > RANGES_MAX:
            raise DamagedList(f"has more than {RANGES_MAX} ranges or {ADDITIONS_MAX} additions")
        if any(one.list_hash not in hashes for one in erasures):
            raise DamagedList("has an erasure of an unknown list")
        return cls(fingerprint, fill, tuple(additions), next(iter(erasures), None))


def _seal(body: bytes) -> bytes:
    return b'{"sha256": "%s"}\n' % hashlib.sha256(body).hexdigest().encode()


def _addition_line(addition: Addition) -> dict[str, Any]:
    return {
        "ranges": addition.ranges.triples(),
        "when": addition.when,
        **({"reason": addition.reason} if addition.reason else {}),
        **({"delimiters": addition.delimiters} if addition.delimiters else {}),
        "list": addition.list_hash.hex(),
    }


def _addition_of(line: dict[str, Any]) -> Addition:
    if not (ranges := TokenRanges.of(line["ranges"])):
        raise DamagedList("has an addition without a range")
    return Addition(
        ranges,
        str(line["when"]),
        str(line.get("reason", "")),
        _hash(line["list"]),
        tuple(map(_number, line.get("delimiters", ()))),
    )


def _erasure_line(erasure: Erasure) -> dict[str, Any]:
    return {
        "erasure": erasure.list_hash.hex(),
        "ranges": erasure.ranges.triples(),
        "fingerprint": erasure.fingerprint.hex(),
        "digest": erasure.digest.hex(),
        "original_digest": erasure.original_digest.hex(),
        "token_max": erasure.token_max,
        "delimiters": erasure.delimiters,
        "files": [[one.file, one.fingerprint.hex()] for one in erasure.files],
        "when": erasure.when,
    }


def _erasure_of(line: dict[str, Any]) -> Erasure:
    ranges = TokenRanges.of(line["ranges"])
    files = tuple(
        ErasedFile(_number(file), _hash(fingerprint)) for file, fingerprint in line["files"]
    )
    if [one.file for one in files] != np.unique(ranges.files).tolist():
        raise DamagedList("has an erasure in files that it does not name")
    return Erasure(
        _hash(line["erasure"]),
        ranges,
        _hash(line["fingerprint"]),
        _hash(line["digest"], may_lack=True),
        _hash(line["original_digest"], may_lack=True),
        _number(line["token_max"]),
        tuple(map(_number, line["delimiters"])),
        files,
        str(line["when"]),
    )


def _hash(digits: str, *, may_lack: bool = False) -> bytes:
    content = bytes.fromhex(digits)
    if len(content) != 32 and not (may_lack and not content):
        raise DamagedList("has a hash that is not 32 bytes")
    return content


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise DamagedList("has a number that is none")
    return value
