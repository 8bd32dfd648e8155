"""The status page as HTML: what is in it, and that nothing in it acts."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.support.statuses import HOSTILE_NAMES, dataset, status, stream
from tests.support.waiting import least_seconds
from tokenfeed.server.rpc.monitoring.status_page.page import bar, rate_line, status_page
from tokenfeed.v1 import status_pb2 as pb

# Elements that the page consists of. What is in no list here came from outside.
ELEMENTS = set(
    "html head meta title link noscript style body p main header h1 h2 h3 span strong time section "
    "ul li bdi dl div dt dd small svg polygon polyline rect table thead tbody tr th td details "
    "summary script".split()
)
ATTRIBUTES = set(
    "lang charset name content rel href http-equiv id role hidden class datetime aria-labelledby "
    "aria-hidden aria-label tabindex scope title viewBox preserveaspectratio viewbox points x "
    "width height".split()
)


class Document(HTMLParser):
    """A page, parsed.  rows: the texts of the cells of each row, by the class of its table."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.texts: list[str] = []
        self.raw: dict[str, str] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self._table = ""
        self._within: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.elements.add(tag)
        self.attributes |= values.keys()
        self.values += [value or "" for value in values.values()]
        if tag == "table":
            self._table = values["class"] or ""
            self.rows[self._table] = []
        elif tag == "tr":
            self.rows[self._table].append([])
        elif tag == "td":
            self.rows[self._table][-1].append("")
        if tag not in ("meta", "link"):
            self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._within.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._within[-1] if self._within else ""
        if inside in ("style", "script"):
            self.raw[inside] = data
            return
        self.texts.append(data)
        if "td" in self._within:
            row = self.rows[self._table][-1]
            row[-1] = f"{row[-1]} {data}".strip()


def page(found: pb.GetStatusResponse) -> Document:
    return Document(status_page(found).content.decode())


def test_a_page_shows_what_an_operator_looks_for() -> None:
    """Readable without JavaScript: all of it is in the HTML."""
    found = status(
        datasets=[
            dataset(
                "code",
                resident_share=0.5,
                rows_per_second=12.5,
                token_bytes_per_second=3 << 20,
                second_bytes=[1, 2, 3],
            )
        ],
        streams=[stream("llama", 1, 2, datasets=["code"], age_seconds=5.0, trainer_sample=987_000)],
        streams_open=1,
        refusals=[pb.Refusals(status="NOT_FOUND", reason="NotFound", count=1234)],
        evictions=7,
        second_bytes=[3 << 20] * 60,
        bytes_per_second=2 << 20,
    )

    shown = page(found)

    text = " ".join(shown.texts)
    for part in ("1.2.3", "up 1 h", "serving", "Nothing.", "2.00 MiB/s", "100 MiB", "31", "7"):
        assert part in text, part
    (row,) = filter(None, shown.rows["datasets"])
    assert row[:4] == ["code", "served", "12.5", "3.00 MiB/s"]
    assert row[5:] == ["1.00 M", "1.91 MiB", "50 %", "3", "raw, uint16", "000102030405"]
    assert bytes(range(32)).hex() in shown.values
    (row,) = filter(None, shown.rows["clients"])
    assert row == [
        "reads",
        "llama 10.0.0.1:41234",
        "1 of 2",
        "code shuffled-1 T=2048 B=32",
        "987,000 sent to 1,000,000",
        "70.0 k",
        "10 %",
        "0 %",
        "0.2 s",
        "5.0 s",
    ]
    assert [row for row in shown.rows["refusals"] if row] == [["NOT_FOUND", "NotFound", "1,234"]]


def test_what_is_wrong_stands_at_the_top_and_in_the_title() -> None:
    """An operator sees it in the list of tabs."""
    found = status(
        datasets=[dataset("code"), dataset("books", lost="web.bin was truncated")],
        streams=[
            stream("fine"),
            stream("stalled", idle_seconds=9.0, waits_for_client=1.0, waits_for_server=0.0),
        ],
    )

    content = status_page(found).content.decode()

    shown = Document(content)
    assert "(2) tokenfeed" in shown.texts
    assert content.index("Dataset books is lost") < content.index("stalled (10.0.0.0:41234) does")
    assert content.index("does not read:") < content.index("<table")
    names = [row[0] for row in shown.rows["datasets"] if row]
    assert names == ["books", "code"]
    assert shown.rows["datasets"][1][1] == "✖ lost: web.bin was truncated"
    states = [row[0] for row in shown.rows["clients"] if row]
    assert states == ["✖ does not read", "reads"]


def test_what_is_not_listed_is_counted() -> None:
    """A page that looks complete and is not would mislead."""
    text = " ".join(page(status(streams=[stream()], streams_omitted=1234)).texts)

    assert "1,234 more are not listed" in text
    assert "1,235" in text


def test_what_comes_from_object_stores_is_shown_where_there_are_any() -> None:
    """Each request is paid for."""
    requests = [
        pb.ObjectRequests(reason="row", requests=3400, bytes=3 << 30),
        pb.ObjectRequests(reason="later", requests=2, bytes=1 << 20),
    ]

    cache = pb.ObjectCache(size_bytes=1 << 30, blocks=800, cached_blocks=200, hits=3, misses=1)

    shown = page(status(object_requests=requests, object_cache=cache))

    assert "In the object cache" in shown.texts
    assert "of 800 MiB, for 75 % of the rows" in shown.texts
    assert "From object stores" in shown.texts
    assert "in 3,402 requests" in shown.texts
    assert [row for row in shown.rows["objects"] if row] == [
        ["rows", "3,400", "3.00 GiB"],
        ["later", "2", "1.00 MiB"],
    ]
    assert "objects" not in page(status()).rows


def test_an_empty_server_has_a_page() -> None:
    """The first thing that is looked at after a start."""
    assert "No client has read yet." in page(pb.GetStatusResponse()).texts


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_texts_add_nothing_to_a_page(name: str) -> None:
    """Anyone who reaches the port names himself, and an operator's browser shows it."""
    found = status(
        server_version=name,
        datasets=[
            dataset(
                name,
                lost=name,
                format=name,
                dtype=name,
                making=[{"what": name, "share": 0.5}],
            )
        ],
        streams=[
            stream(name, order=name, datasets=[name] * 40, address=name),
            stream(name, idle_seconds=9.0, waits_for_client=1.0, waits_for_server=0.0),
        ],
        refusals=[pb.Refusals(status=name, reason=name, count=1)],
    )

    content = status_page(found).content

    shown = Document(content.decode())
    assert shown.elements <= ELEMENTS
    assert shown.attributes <= ATTRIBUTES
    assert len(content) < len(status_page(status()).content) + 30_000
    for text in (*shown.texts, *shown.values):
        assert all(sign.isprintable() or sign in "\n\ufffd" for sign in text)


def test_nothing_can_be_loaded_or_run_that_the_page_did_not_bring() -> None:
    """Should a text ever get through, it is only text."""
    found = status_page(status(datasets=[dataset()], streams=[stream()]))

    policy = dict(
        part.strip().split(" ", 1) for part in found.headers["Content-Security-Policy"].split(";")
    )
    raw = Document(found.content.decode()).raw
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(raw[kind].encode()).digest()).decode()
        assert policy.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Cache-Control"] == "no-store"
    assert found.headers["Referrer-Policy"] == "no-referrer"
    assert b" style=" not in found.content
    assert not re.search(rb"""(src|href)=(?!"data:,")""", found.content)


@pytest.mark.alone
def test_a_thousand_clients_are_rendered_within_a_second() -> None:
    """The largest page, with the worst of everything."""
    stalled: dict[str, Any] = {"idle_seconds": 9.0, "waits_for_client": 1.0}
    found = status(
        datasets=[dataset(f"d{number}", second_bytes=range(60)) for number in range(50)],
        streams=[
            stream(f"run-{number // 8} rank {number % 8}", number % 8, 8, **stalled)
            for number in range(1000)
        ],
    )

    def seconds() -> float:
        begun = time.monotonic()
        shown = status_page(found)
        assert shown.content.count(b"<tr") == 1000 + 50 + 2
        return time.monotonic() - begun

    assert least_seconds(seconds, 1.0) < 1.0


def test_a_line_is_drawn_to_its_own_scale_and_ends_now() -> None:
    """The latest second stands at the right end, also just after a start."""
    drawn = rate_line([0, 50, 100])

    assert 'points="57,100 58,52 59,4"' in drawn
    assert "the last 3 s: 100 B/s at most" in drawn
    assert "polyline" not in rate_line([])
    assert 'points="0,100 1,100 ' in rate_line([0] * 60)


def test_bars_stay_in_their_frame() -> None:
    """Whatever the shares are."""
    widths = [re.findall(r'<rect .*width="(\d+)"', bar(share)) for share in (0.75, 1.5, -1.0)]
    assert widths == [["75"], ["100"], []]
