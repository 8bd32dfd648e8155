"""Log records as JSON: one line each, whatever their values are."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import eventually
from tokenfeed.server.runtime.json_log import JsonFormatter, log_crashes

ESCAPES = "".join(map(chr, range(32))) + '"\\\x7f\x85\u2028\u2029\x1b[31m'


def record(message: Any, *values: Any, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("tokenfeed.server", 20, __file__, 1, message, values, exc_info)


def logged(message: Any, *values: Any, exc_info: Any = None) -> dict[str, Any]:
    """What a strict reader finds in the line of a record."""
    line = JsonFormatter().format(record(message, *values, exc_info=exc_info))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    found = json.loads(line, parse_constant=pytest.fail)
    # No half of a character is left.
    json.dumps(found, ensure_ascii=False).encode()
    return found


def test_each_value_of_a_message_is_a_field() -> None:
    """So that a query finds all streams of one client without a pattern."""
    found = logged(
        "stream opened peer=%s client=%r rows=%d seconds=%.1f last=%s",
        "ipv4:10.0.0.7:4711", "run-17 rank 3", 4096, 3.8912, None,
    )  # fmt: skip

    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "INFO",
        "logger": "tokenfeed.server",
        "event": "stream opened",
        "message": "stream opened peer=ipv4:10.0.0.7:4711 client='run-17 rank 3' rows=4096 "
        "seconds=3.9 last=None",
        "peer": "ipv4:10.0.0.7:4711",
        "client": "run-17 rank 3",
        "rows": 4096,
        "seconds": 3.8912,
        "last": None,
    }


@pytest.mark.parametrize(
    ("message", "values", "event", "fields"),
    [
        ("stopping", (), "stopping", {}),
        ("100 % of it", (), "100 % of it", {}),
        ("copied twice: %s", ("no permission",), "copied twice: no permission", {}),
        ("port address=%s: anyone", ("[::]:1",), "port", {"address": "[::]:1"}),
        ("done=%.1f%% of=%d", (12.5, 3), "", {"done": 12.5, "of": 3}),
        ("%s %s dataset=%s", ("rows", "made", "web"), "rows made", {"dataset": "web"}),
        ("50%% done, x=%*d y=%-8.*f", (5, 7, 2, 1.5), "50% done", {"x": 7, "y": 1.5}),
        ("file=%s%s", ("a", "b"), "", {"file": "a"}),
        ("a.b=%s c-d=%s", (1, 2), "a.b=1 c-d=2", {}),
        ("event level=%s time=%s", (1, 2), "event", {"level_": 1, "time_": 2}),
        ("%(a)s b=%(b)s", ({"a": 1, "b": 2},), "1 b=2", {}),
    ],
)
def test_what_stands_before_the_first_key_is_the_event(
    message: str, values: tuple[Any, ...], event: str, fields: dict[str, Any]
) -> None:
    """Lines of one kind are found by it."""
    found = logged(message, *values)

    assert found["event"] == event
    if values:
        assert found["message"] == message % (values[0] if "(a)" in message else values)
    known = ("time", "level", "logger", "event", "message")
    assert {key: value for key, value in found.items() if key not in known} == fields


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.int64(5), 5),
        (np.float32(0.5), 0.5),
        (True, True),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1 << 64, str(1 << 64)),
        (np.dtype("<u2"), "uint16"),
        (ValueError("no\nway"), "no\nway"),
        (b"\xff", "b'\\xff'"),
    ],
)
def test_a_value_is_a_number_or_text(value: object, shown: object) -> None:
    """NaN is no JSON, and few readers take a number of 20 digits."""
    assert logged("value=%s", value)["value"] == shown


@pytest.mark.parametrize(
    "name",
    [ESCAPES, '","level":"ERROR', "a\r\nerror: forged", "<script>", "naïve 🤖", "%s %d", "key=%s"],
)
def test_a_hostile_name_stays_in_its_field(name: str) -> None:
    """A client chooses its name, and must not forge a line or a field."""
    found = logged("stream opened client=%s", name)

    assert found["client"] == name
    assert set(found) == {"time", "level", "logger", "event", "message", "client"}
    assert found["event"] == "stream opened"


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    """A path may have any bytes; half a character would make strict readers refuse the line."""
    assert logged("file=%s", "caf\udce9.bin")["file"] == "caf\\udce9.bin"


def test_a_long_value_is_cut() -> None:
    """Collectors split, or drop, lines that are too long."""
    found = logged("stream opened client=%r", "x" * 10_000)

    assert found["client"] == "x" * 4096 + "..."
    assert len(json.dumps(found)) < 9000


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("message", "values"),
    [
        ("rows=%d", ("many",)),
        ("rows=%d of=%d", (1,)),
        ("rows", (1,)),
        ("rows=%s", (Unshowable(),)),
        ("rows=%y", (1,)),
        (Unshowable(), ()),
    ],
)
def test_a_record_that_cannot_be_formatted_is_a_line_too(
    message: object, values: tuple[object, ...]
) -> None:
    """Python would print a traceback of many lines instead."""
    found = logged(message, *values)

    assert found["event"] == "unformatted"
    assert found["level"] == "INFO"


def test_a_traceback_is_a_field() -> None:
    """With all of its lines in one; of a very long one, the end says most."""
    try:
        raise ValueError("a\nb" + "x" * 10_000 + "the end")
    except ValueError:
        found = logged("failed", exc_info=sys.exc_info())

    assert found["exception"].startswith("...")
    assert found["exception"].endswith("the end")
    assert found["event"] == "failed"


VALUES = st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.none())


@given(st.text(), st.lists(VALUES, max_size=4))
def test_any_message_with_any_values_is_one_line(message: str, values: list[Any]) -> None:
    """Never two lines, and never an exception."""
    assert logged(message, *values)["level"] == "INFO"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=1000))
def test_text_comes_back_as_it_was(text: str) -> None:
    """Escapes are the matter of the format alone."""
    assert logged("opened client=%s", text)["client"] == text


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where crashes are logged; all is as it was afterwards."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    for name in ("tokenfeed.server", "py.warnings"):
        logging.getLogger(name).addHandler(handler)
    for module, name in ((sys, "excepthook"), (threading, "excepthook")):
        monkeypatch.setattr(module, name, getattr(module, name))
    with warnings.catch_warnings():
        log_crashes()
        yield stream
        logging.captureWarnings(False)
    for name in ("tokenfeed.server", "py.warnings"):
        logging.getLogger(name).removeHandler(handler)


def test_what_ends_a_thread_is_a_line_too(crashes: io.StringIO) -> None:
    """A collector would take each line of a traceback for a record."""

    def fail() -> None:
        raise RuntimeError("a\nb")

    failing = threading.Thread(target=fail, name="tokenfeed-failing")
    failing.start()
    failing.join()
    warnings.showwarning("old", DeprecationWarning, "module.py", 1)

    assert eventually(lambda: crashes.getvalue().count("\n") == 2)
    crash, warning = map(json.loads, crashes.getvalue().splitlines())
    assert (crash["event"], crash["thread"]) == ("crashed", "tokenfeed-failing")
    assert crash["level"] == "CRITICAL"
    assert crash["exception"].endswith("RuntimeError: a\nb")
    assert warning["logger"] == "py.warnings"
