"""Which planes a stream requests, and what it accepts of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.client.conftest import wanted
from tests.support import reference
from tests.support.mixtures import MIXTURE, NAMES, T
from tests.support.targets import (
    Count,
    Starts,
    counts_plane,
    mask_plane,
    redacted_plane,
    starts_plane,
)
from tokenfeed.client.source.calls import Calls
from tokenfeed.client.source.plane_selection import PLANES, PlaneSelection, require_valid
from tokenfeed.errors import BadFrame
from tokenfeed.stream.planes import (
    DOCUMENT_STARTS,
    KINDS,
    LOSS_MASK,
    NO_FINGERPRINT,
    REDACTED,
    TOKEN_COUNTS,
)
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus, Redaction
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import Plane, RowBlock

ROW_TOKENS = 12


def described(*kinds: int, number: int = 0) -> pb.Dataset:
    """A dataset with some planes, each with a fingerprint of its own."""
    planes = [pb.DatasetPlane(kind=kind, fingerprint=bytes([kind + number] * 32)) for kind in kinds]
    return pb.Dataset(name="train", fingerprint=bytes([number] * 32), planes=planes)


@pytest.mark.parametrize(
    ("selection", "datasets", "kinds"),
    [
        (PlaneSelection(), [()], ()),
        (PlaneSelection(), [(50, 51, 52)], (51,)),
        (PlaneSelection(), [(), (51,)], (51,)),
        (PlaneSelection(document_starts=True), [(50,)], (50,)),
        (PlaneSelection(document_starts=True), [(50,), (50, 51)], (50, 51)),
        (PlaneSelection(loss_mask=False), [(50, 51)], ()),
        (PlaneSelection(loss_mask=False, document_starts=True), [(50, 51)], (50,)),
    ],
)
def test_a_plane_is_requested_if_it_is_wanted_and_a_dataset_has_it(
    selection: PlaneSelection, datasets: list[tuple[int, ...]], kinds: tuple[int, ...]
) -> None:
    """A mask that is not wanted is declined, or the server refuses."""
    request = selection.request(wanted(4, 3), [described(*each) for each in datasets])

    assert request.planes == kinds
    assert request.declined_planes == (() if selection.loss_mask else (51,))


def test_each_stage_expects_the_planes_of_those_of_its_sources_that_have_them() -> None:
    """A stage without a mask requests none, and its rows have an empty one all the same."""
    stream = MIXTURE.definition(T, "shuffled", 9).stream
    with_mask = {"web": True, "code": False, "math": False, "news": True}
    datasets = [
        described(*[51] * with_mask[name], number=number) for number, name in enumerate(NAMES)
    ]
    plain = Request(stream, Position(0, 4))
    calls = Calls(PlaneSelection().request(plain, datasets), datasets)
    found = []
    for stage in stream.stages:
        part, expected, planes = calls.part(stage.first_sample, stage.first_sample + 4)
        assert part.planes == tuple(kind for kind, _ in expected.planes)
        assert planes == (51,)
        found.append(expected.planes)

    web, news = ((number, bytes([51 + number] * 32)) for number in (0, 3))
    both = ((51, reference.stage_plane_fingerprint(51, [web, news])),)
    assert found == [
        ((51, reference.stage_plane_fingerprint(51, [web])),),
        (),
        both,
    ]


def test_a_stage_of_one_source_expects_the_plane_of_its_dataset() -> None:
    """As a stream over that dataset does, so that both may be read from the same servers."""
    datasets = [described(51, number=7)]
    request = PlaneSelection().request(wanted(4, 3), datasets)

    (_, expected, _) = Calls(request, datasets).part(0, 3)

    assert expected.planes == ((51, bytes([58] * 32)),)


def test_a_call_expects_the_identity_of_its_stage_and_the_digests_of_its_sources() -> None:
    """A server that has other files of one of them refuses, and the others serve on."""
    stream = MIXTURE.definition(T, "shuffled", 9).stream
    datasets = [described(number=number) for number in range(len(NAMES))]
    for number, dataset in enumerate(datasets):
        dataset.digest = bytes([100 + number] * 32)
    known = stream.known({n: Corpus(bytes([n] * 32)) for n in range(len(NAMES))})
    calls = Calls(PlaneSelection().request(Request(stream, Position(0, 4)), datasets), datasets)

    for stage in known.stages:
        part, expected, _ = calls.part(stage.first_sample, stage.first_sample + 4)
        assert part.stream.stage.previous == stage.previous
        assert expected.identity == known.identity(stage.first_sample)
        assert expected.digests == tuple(bytes([100 + number] * 32) for number in stage.weights)


def test_a_stream_with_redactions_requests_where_they_are_in_every_call() -> None:
    """Also before the first one is in force; such a call expects what it did without them."""
    plain = wanted(4, 3)
    redactions = (Redaction(5, 0, bytes(32)), Redaction(9, 0, bytes([1] * 32)))
    request = replace(plain, stream=replace(plain.stream, redactions=redactions))
    datasets = [described(51)]
    calls = Calls(PlaneSelection().request(request, datasets), datasets)
    without = Calls(PlaneSelection().request(plain, datasets), datasets)

    parts = [calls.part(row, 30) for row in (0, 5, 9)]

    assert [part.request.end_sample for part in parts] == [5, 9, None]
    assert [part.request.stream.redactions for part in parts] == [(), redactions[:1], redactions]
    identity = without.part(0, 30).expected.identity
    assert [part.expected.identity for part in parts] == [
        identity,
        *(
            reference.redacted_identity(
                identity, [(each.first_sample, 0, each.list_hash) for each in redactions[:count]]
            )
            for count in (1, 2)
        ),
    ]
    for part in parts:
        assert part.request.planes == part.planes == (51, 53)
        assert dict(part.expected.planes)[53] == NO_FINGERPRINT


def test_a_stage_without_the_redacted_source_expects_what_it_did_before() -> None:
    """So only servers of that stage need the list."""
    stream = MIXTURE.definition(T, "shuffled", 9).stream
    datasets = [described(number=number) for number in range(len(NAMES))]
    redacted = replace(stream, redactions=(Redaction(0, 0, bytes(32)),))

    def identities(stream: Stream) -> list[bytes]:
        calls = Calls(PlaneSelection().request(Request(stream, Position(0, 4)), datasets), datasets)
        begins = [stage.first_sample for stage in stream.stages]
        return [calls.part(begin, begin + 4).expected.identity for begin in begins]

    same = [a == b for a, b in zip(identities(stream), identities(redacted), strict=True)]
    assert same == [False, True, False], "the second stage does not read web"


def test_what_ranks_compare_of_planes_changes_with_one_that_masks_targets_and_no_other() -> None:
    """Other masks train other targets on the same tokens; borders count where they are wanted."""
    masks, borders = PlaneSelection(), PlaneSelection(document_starts=True)
    neither = PlaneSelection(loss_mask=False)

    def compared(selection: PlaneSelection, *fingerprints: tuple[int, int]) -> str:
        planes = [pb.DatasetPlane(kind=k, fingerprint=bytes([v] * 32)) for k, v in fingerprints]
        return selection.compared([pb.Dataset(name="train", planes=planes)])

    assert compared(neither, (50, 1), (51, 1)) == compared(masks, (50, 2)) == ""
    assert compared(masks, (50, 1), (51, 1)) == compared(masks, (51, 1))
    found = {compared(masks, (51, mask)) for mask in (1, 2)}
    found |= {compared(borders, (50, starts), (51, 1)) for starts in (1, 2)}
    assert len({"", *found}) == 5


def block(*planes: Plane) -> RowBlock:
    return RowBlock(np.zeros((2, ROW_TOKENS), "<u2"), planes)


MASK = [1] * ROW_TOKENS


def ranges_plane(*rows: list[tuple[int, int]]) -> Plane:
    """Plane 53 of rows, with any ranges."""
    lengths = np.array([8 * len(row) for row in rows], np.uint32)
    content = np.array([number for row in rows for each in row for number in each], "<u4")
    return Plane(REDACTED, lengths, content.view(np.uint8))


def test_planes_that_rows_can_have_are_accepted() -> None:
    """Starts of the next row may be below those of the row before."""
    mask = mask_plane([MASK, MASK])

    require_valid(block(starts_plane([[1, 5, 11], [3]]), mask), may_lack=False)
    require_valid(block(starts_plane([[], [11]]), mask), may_lack=False)
    require_valid(block(starts_plane([[], []]), mask_plane([None, MASK])), may_lack=True)
    for redacted in ([{}, {}], [{0, 1, 5, ROW_TOKENS - 1}, {0}], [range(ROW_TOKENS)] * 2):
        require_valid(block(redacted_plane(redacted)), may_lack=False)
        require_valid(block(mask, counts_plane([5, 9]), redacted_plane(redacted)), may_lack=True)


def test_rows_of_pieces_end_anywhere_behind_their_second_token() -> None:
    """A last piece may begin with the last token but one, also beside a row of a window."""
    mask = mask_plane([MASK, MASK])
    for starts, counts in [
        ([[], []], [2, ROW_TOKENS]),
        ([[1], [1, 5, 11]], [2, ROW_TOKENS]),
        ([[4], [9]], [6, ROW_TOKENS - 1]),
    ]:
        for planes in [
            (starts_plane(starts), counts_plane(counts)),
            (starts_plane(starts), mask, counts_plane(counts)),
            (counts_plane(counts),),
        ]:
            require_valid(block(*planes), may_lack=False)
            require_valid(block(*planes), may_lack=True)
    for counts in ([None, 3], [None, None]):
        require_valid(block(starts_plane([[11], [2]]), counts_plane(counts)), may_lack=True)


@pytest.mark.parametrize(
    ("plane", "may_lack"),
    [
        (mask_plane([None, MASK]), False),
        (mask_plane([MASK, [1] * 16 + [1]]), True),
        (mask_plane([MASK, [1] * 8]), True),
        (starts_plane([[0], []]), True),
        (starts_plane([[], [ROW_TOKENS]]), True),
        (starts_plane([[5, 5], []]), True),
        (starts_plane([[7, 2], []]), True),
        (starts_plane([[1 << 31], []]), True),
        (Plane(DOCUMENT_STARTS, np.array([3, 1], np.uint32), np.zeros(4, np.uint8)), True),
        (counts_plane([None, 5]), False),
        (counts_plane([5, 1]), True),
        (counts_plane([0, 5]), True),
        (counts_plane([ROW_TOKENS + 1, 5]), True),
        (counts_plane([1 << 31, 5]), True),
        (counts_plane([(1 << 32) - 1, 5]), True),
        (Plane(TOKEN_COUNTS, np.array([3, 4], np.uint32), np.full(7, 1, np.uint8)), True),
        (Plane(TOKEN_COUNTS, np.array([8, 4], np.uint32), np.full(12, 1, np.uint8)), True),
        (Plane(TOKEN_COUNTS, np.array([8, 0], np.uint32), np.full(8, 1, np.uint8)), True),
        (ranges_plane([(0, ROW_TOKENS + 1)], []), True),
        (ranges_plane([(3, 3)], []), True),
        (ranges_plane([(4, 3)], []), True),
        (ranges_plane([(1, 3), (3, 5)], []), True),
        (ranges_plane([], [(4, 6), (1, 2)]), True),
        (ranges_plane([(1, 5), (2, 7)], []), True),
        (ranges_plane([(1 << 31, (1 << 32) - 1)], []), True),
        (Plane(REDACTED, np.array([4, 4], np.uint32), np.ones(8, np.uint8)), True),
        (Plane(REDACTED, np.array([0, 7], np.uint32), np.ones(7, np.uint8)), True),
    ],
)
def test_planes_that_no_row_can_have_are_not_accepted(plane: Plane, may_lack: bool) -> None:
    """A wrong offset would ignore a target of another row."""
    names = {
        DOCUMENT_STARTS: "document starts",
        LOSS_MASK: "loss mask",
        REDACTED: "redacted tokens",
    }
    name = names.get(plane.kind, "token counts")

    with pytest.raises(BadFrame, match=name):
        require_valid(block(plane), may_lack=may_lack)
    if plane.kind == TOKEN_COUNTS:  # which documents are compared with
        with pytest.raises(BadFrame, match=name):
            require_valid(block(starts_plane([[1], []]), plane), may_lack=may_lack)


@pytest.mark.parametrize(
    ("starts", "counts"),
    [
        ([[5], []], [5, 9]),
        ([[], [2, 11]], [5, 11]),
        ([[11], [3]], [None, 3]),
        ([[2, 7, 3], []], [9, 9]),
    ],
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_no_document_begins_in_the_padding_of_a_row(
    starts: list[Starts], counts: list[Count], is_masked: bool
) -> None:
    """Documents of a batch would be more than its row has pieces."""
    mask = [mask_plane([MASK, MASK])] * is_masked

    with pytest.raises(BadFrame, match="document starts"):
        require_valid(block(starts_plane(starts), *mask, counts_plane(counts)), may_lack=True)


def test_each_kind_of_plane_of_the_contract_has_an_entry() -> None:
    """The client requests no plane whose content it cannot check."""
    assert list(PLANES) == list(KINDS)


def test_a_kind_of_plane_that_has_no_entry_is_refused() -> None:
    """Its bytes must not pass for those of another kind."""
    content = np.zeros(4, np.uint8)

    with pytest.raises(BadFrame, match="frame: has plane 59, whose content this client cannot"):
        require_valid(block(Plane(59, np.array([2, 2], np.uint32), content)), may_lack=False)
