"""The content of a list file: what was written is read, and what is damaged is refused."""

from __future__ import annotations

import json

import pytest

from tokenfeed.server.datasets.redactions import list_format
from tokenfeed.server.datasets.redactions.list_format import (
    DamagedList,
    ErasedFile,
    Erasure,
    ListContent,
    _seal,
)
from tokenfeed.server.datasets.redactions.ranges import TokenRanges

FINGERPRINT = bytes(range(32))


def content() -> ListContent:
    found = ListContent(FINGERPRINT, 5, ())
    found = found.with_addition(TokenRanges.of([(0, 3, 9), (2, 0, 4)]), "2026-11-25T00:00:00Z", "é")
    return found.with_addition(TokenRanges.of([(0, 9, 12)]), "2026-11-26T00:00:00Z")


def erasure(**changes: object) -> Erasure:
    facts = {
        "list_hash": content().hashes[0],
        "ranges": TokenRanges.of([(0, 3, 9)]),
        "fingerprint": bytes(32),
        "digest": b"",
        "original_digest": b"",
        "token_max": 77,
        "delimiters": (1, 2),
        "files": (ErasedFile(0, bytes(32)),),
        "when": "2026-11-27T00:00:00Z",
    }
    return Erasure(**(facts | changes))  # type: ignore[arg-type]


def sealed(*lines: object) -> bytes:
    body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    return body + _seal(body)


@pytest.mark.parametrize("of_it", [None, erasure(), erasure(digest=bytes(32))])
def test_a_list_is_read_as_it_was_written(of_it: Erasure | None) -> None:
    """A byte that is not the same would be another list."""
    written = ListContent(FINGERPRINT, 5, content().additions, of_it).to_bytes()
    found = ListContent.parse(written)

    assert found.to_bytes() == written
    assert found.hashes == content().hashes
    assert [one.reason for one in found.additions] == ["é", ""]
    assert (found.erasure is None) == (of_it is None)


def test_every_prefix_of_additions_is_a_list() -> None:
    """A run that took up an older list goes on after later additions."""
    found = content()

    assert found.list_of(1).ranges.triples() == [(0, 3, 9), (2, 0, 4)]
    assert found.list_of(2).ranges.triples() == [(0, 3, 12), (2, 0, 4)]
    assert [found.list_of(count).hash for count in (1, 2)] == list(found.hashes)


def test_ranges_that_are_in_the_list_add_nothing() -> None:
    """The same command twice is one addition."""
    before = content()

    assert before.with_addition(TokenRanges.of([(0, 4, 11)]), "later") is before


def test_any_damaged_byte_is_found() -> None:
    """Other ranges would be taken out than were asked for."""
    whole = content().to_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        with pytest.raises(DamagedList):
            ListContent.parse(bytes(damaged))


def test_a_truncated_list_is_found() -> None:
    """Also at the end of a line: it would be an older list."""
    whole = content().to_bytes()
    for end in range(len(whole)):
        with pytest.raises(DamagedList):
            ListContent.parse(whole[:end])


FIRST = {"tokenfeed_redactions": 1, "fingerprint": FINGERPRINT.hex(), "fill": 0}
ADDITION = {"ranges": [[0, 1, 2]], "when": "now", "list": bytes(32).hex()}
HASHES = dict.fromkeys(("erasure", "fingerprint", "digest", "original_digest"), bytes(32).hex())
ERASURE = HASHES | {"ranges": [[0, 1, 2]], "token_max": 7, "delimiters": [], "when": "now"}
ERASURE |= {"files": [[0, bytes(32).hex()]]}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [FIRST],
        [ADDITION],
        [FIRST | {"tokenfeed_redactions": 2}, ADDITION],
        [FIRST | {"fill": -1}, ADDITION],
        [FIRST | {"fill": True}, ADDITION],
        [FIRST | {"fingerprint": "00"}, ADDITION],
        [FIRST, ADDITION, ADDITION],
        [FIRST, ADDITION | {"ranges": [[0, 2, 1]]}],
        [FIRST, ADDITION | {"ranges": {}}],
        [FIRST, ADDITION | {"ranges": [[0, 0.5, 1]]}],
        [FIRST, ADDITION | {"ranges": [["0", "1", "2"]]}],
        [FIRST, ADDITION | {"ranges": [[0, 1, 1 << 70]]}],
        [FIRST, ADDITION | {"list": 7}],
        [FIRST, "text"],
        [FIRST, ADDITION, {"erasure": bytes(32).hex()}],
        [FIRST, ADDITION, ERASURE, ERASURE],
        [FIRST, ADDITION, ERASURE | {"erasure": bytes(31).hex() + "01"}],
        [FIRST, ADDITION, ERASURE | {"files": []}],
        [FIRST, ADDITION, ERASURE | {"files": [[1, bytes(32).hex()]]}],
        [FIRST, ADDITION, ERASURE | {"fingerprint": "00"}],
        [FIRST, ADDITION | {"delimiters": [-1]}],
    ],
)
def test_what_is_sealed_and_no_list_is_refused(lines: list[object]) -> None:
    """Anyone can compute the seal."""
    with pytest.raises(DamagedList):
        ListContent.parse(sealed(*lines))


def test_the_lines_of_these_cases_are_a_list_but_for_their_faults() -> None:
    """Or they would be refused for another reason."""
    assert ListContent.parse(sealed(FIRST, ADDITION, ERASURE)).erasure is not None


def test_a_list_whose_hash_is_not_its_own_is_found() -> None:
    """A server would serve other rows than the run asked for."""
    found = ListContent.parse(sealed(FIRST, ADDITION))
    with pytest.raises(DamagedList, match="addition 1"):
        found.list_of(1)


def test_the_size_of_a_list_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server reads it into memory."""
    monkeypatch.setattr(list_format, "RANGES_MAX", 3)
    found = content()
    with pytest.raises(ValueError, match="would have 4 ranges; the limit is 3"):
        found.with_addition(TokenRanges.of([(1, 0, 1)]), "now")
    monkeypatch.setattr(list_format, "RANGES_MAX", 9)
    monkeypatch.setattr(list_format, "ADDITIONS_MAX", 2)
    with pytest.raises(ValueError, match="2 additions, the limit; add more"):
        found.with_addition(TokenRanges.of([(1, 0, 1)]), "now")
    monkeypatch.setattr(list_format, "BYTES_MAX", 100)
    with pytest.raises(ValueError, match="the limit is 100"):
        found.to_bytes()
