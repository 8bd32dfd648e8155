"""Kinds of planes: those of the contract, and no other."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream import planes
from tokenfeed.v1 import tokenfeed_pb2 as pb

PAGE = ROOT / "docs" / "protocol.md"


def test_the_kinds_are_those_that_the_page_lists() -> None:
    """A kind that the page does not explain cannot be sent by other implementations."""
    table = re.findall(r"^\| (\d\d) \| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE)

    assert {int(number): name for number, name in table} == planes.KINDS


def test_every_kind_is_a_plane_of_the_frame() -> None:
    """What reads one kind reads them all."""
    for number, name in planes.KINDS.items():
        field = pb.Frame.DESCRIPTOR.fields_by_number[number]
        assert (field.name, field.message_type) == (name, pb.Plane.DESCRIPTOR)


def test_the_kinds_have_names_in_code() -> None:
    """Numbers are for the wire."""
    assert planes.KINDS[planes.DOCUMENT_STARTS] == "document_starts"
    assert planes.KINDS[planes.LOSS_MASK] == "loss_mask"
    assert planes.KINDS[planes.TOKEN_COUNTS] == "token_counts"
    assert planes.KINDS[planes.REDACTED] == "redacted"


@pytest.mark.parametrize("kinds", [(), (50,), (51,), (50, 51), (50, 51, 52, 53)])
def test_known_kinds_in_ascending_order_pass(kinds: tuple[int, ...]) -> None:
    """None at all is what most streams ask for."""
    planes.require_known(kinds)


@pytest.mark.parametrize("kind", [-1, 0, 1, 49, 54, 99, 100, 2**32 - 1])
def test_a_kind_that_the_contract_does_not_have_is_named_with_those_that_it_has(kind: int) -> None:
    """Field 100 is the tokens, and 1 to 49 are headers: no plane, though fields of the frame."""
    with pytest.raises(InvalidRequest, match=f"^planes: {kind} .*50 .document_starts") as caught:
        planes.require_known([50, kind])

    assert caught.value.subject == "planes"


@pytest.mark.parametrize("kinds", [(51, 51), (51, 50), (50, 52, 51), (50, 51, 50)])
def test_a_kind_twice_or_out_of_order_is_refused(kinds: tuple[int, ...]) -> None:
    """The checksum takes them in one order; two orders would be two streams."""
    with pytest.raises(InvalidRequest, match=r"^planes: 5\d follows 5\d; kinds must ascend"):
        planes.require_known(kinds)
