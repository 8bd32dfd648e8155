"""Draws the pictures of the README, from real runs:

    python -m benchmarks.pictures                                 # docs/pictures/resume.svg
    python -m benchmarks.delivered | python -m benchmarks.pictures rates     # rates.svg

Four ranks read from two servers, one of which is killed. All stop, and three ranks with larger
batches go on with a server of their own. The rows are compared with those that the second
implementation of the protocol computes from the file alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from tests.support import reference
from tokenfeed import NumpyBatches, Timeouts

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

CONTEXT_LENGTH = 256
SEED = 1337
FIRST, SECOND = (4, 4, 12), (3, 8, 8)
"""World size, rows of a batch, and batches of each rank, before and after the stop."""
KILLED_AFTER_BATCHES = 5
"""Of rank 0, which reads from the server that is killed."""

WIDTH, LEFT, RIGHT = 960, 118, 24
LANE, LANES_TOP = 24, 64
STRIP = 26
RANK_COLOURS = ("#3b6fb6", "#d1783b", "#4a9a68", "#8b5fb0")
INK, FAINT, BACKGROUND, ALARM = "#22272e", "#6b7280", "#ffffff", "#c0392b"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch that a rank was given.

    samples: of its rows, ascending.  rows: int64[n, T + 1].
    """

    rank: int
    samples: tuple[int, ...]
    rows: np.ndarray


def main(words: Sequence[str]) -> None:
    """Draw one of the two pictures.  words: none, or "rates"."""
    if words == ["rates"]:
        printed = sys.stdin.read()
        (PICTURES / "rates.svg").write_text(drawn_rates(medians(printed)))
        return
    draw_resume()


def draw_resume() -> None:
    """Run, compare and draw.  Exits with an error if any row differs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "train.bin"
        text = "".join(topics[topic] for topic in sorted(topics)).encode()
        np.frombuffer(text, np.uint8).astype("<u2").tofile(path)
        first, state = run_and_kill(path)
        with server(path) as (address, _):
            second = read(path, [address], SECOND, state)
            answer = explained(folder, state, address)
    deliveries = [*first, *second]
    received = {
        sample: row
        for each in deliveries
        for sample, row in zip(each.samples, each.rows, strict=True)
    }
    delivered = sum(len(each.samples) for each in deliveries)
    total = sum(world * rows * batches for world, rows, batches in (FIRST, SECOND))
    expected = offline(path_bytes=np.frombuffer(text, np.uint8).astype("<u2"), count=total)
    same = [np.array_equal(received.get(sample), expected[sample]) for sample in range(total)]
    if delivered != total or not all(same):
        sys.exit(f"{delivered} rows were delivered, and {sum(same)} of {total} are right")
    (PICTURES / "resume.svg").write_text(drawn(deliveries, received, expected, answer))
    print(f"{total} rows, all equal to those of an unbroken run; wrote resume.svg")


@contextmanager
def server(path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Lend a server of a token file: its address, and its process."""
    words = ["serve", "--data", str(path), "--host", "127.0.0.1", "--port", "0"]
    command = [sys.executable, "-m", "tokenfeed", *words, "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process
    finally:
        process.kill()
        process.wait()


def run_and_kill(path: Path) -> tuple[list[Delivery], dict[str, Any]]:
    """Read with the first ranks from two servers, and kill one of them on the way.

    Returns: the batches, and the state of the feeds, which all of them have.
    """
    with ExitStack() as servers:
        lent = [servers.enter_context(server(path)) for _ in range(2)]
        addresses = [address for address, _ in lent]
        process = lent[0][1]
        state: dict[str, Any] = {}
        batches = read(path, addresses, FIRST, state, kill=process)
    return batches, state


def read(
    path: Path,
    addresses: Sequence[str],
    shape: tuple[int, int, int],
    state: dict[str, Any],
    kill: subprocess.Popen[str] | None = None,
) -> list[Delivery]:
    """Read with some ranks, each in a thread, in step with each other.

    state: loaded by each rank if there is one; afterwards that of rank 0.  kill: a server that dies
    on the way.
    """
    world_size, batch_size, batch_count = shape
    step = threading.Barrier(world_size)
    deliveries: list[Delivery] = []
    begun = dict(state)

    def run(rank: int) -> None:
        feed = NumpyBatches(
            list(addresses),
            batch_size,
            CONTEXT_LENGTH,
            order="shuffled",
            seed=SEED,
            rank=rank,
            world_size=world_size,
            prefetch_bytes=1,
            timeouts=Timeouts(reconnect_seconds=30),
        )
        with feed:
            if begun:
                feed.load_state_dict(begun)
            batches = feed.batches()
            for number in range(batch_count):
                batch = next(batches)
                rows = np.column_stack([batch.x, batch.y[:, -1:]]).astype(np.int64)
                deliveries.append(Delivery(rank, tuple(map(int, batch.sample_numpy)), rows))
                step.wait(60)
                if kill is not None and rank == 0 and number + 1 == KILLED_AFTER_BATCHES:
                    kill.send_signal(signal.SIGKILL)
                    kill.wait()
                step.wait(60)
            if rank == 0:
                state.update(feed.state_dict())

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return deliveries


def explained(folder: Path, state: dict[str, Any], address: str) -> list[str]:
    """Return what `tokenfeed explain` says of a row of the last step."""
    saved = folder / "step-20.json"
    saved.write_text(json.dumps(state))
    words = ["explain", "--state", saved.name, "--rank", "2", "--row", "5", address]
    command = [sys.executable, "-m", "tokenfeed", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    shown = " ".join(["$ tokenfeed", *words[:-1], "host:50051"])
    return [shown, *done.stdout.splitlines()]


def offline(path_bytes: np.ndarray, count: int) -> np.ndarray:
    """Return the first rows of the stream by the second implementation, int64[count, T + 1]."""
    rows = reference.rows(
        [path_bytes.tobytes()], 2, "shuffled-1", SEED, CONTEXT_LENGTH, range(count)
    )
    return np.frombuffer(b"".join(rows), "<u2").reshape(count, CONTEXT_LENGTH + 1).astype(np.int64)


def drawn(
    deliveries: Sequence[Delivery],
    received: dict[int, np.ndarray],
    expected: np.ndarray,
    answer: Sequence[str],
) -> str:
    """Return the picture as SVG: a lane for each rank, and the rows below, coloured by their
    content.
    """
    total = len(expected)
    scale = (WIDTH - LEFT - RIGHT) / total

    def x(sample: float) -> float:
        return LEFT + sample * scale

    lanes = max(FIRST[0], SECOND[0])
    bottom = LANES_TOP + lanes * LANE
    strips = bottom + 34
    stop = FIRST[0] * FIRST[1] * FIRST[2]
    killed = FIRST[0] * FIRST[1] * KILLED_AFTER_BATCHES
    parts = [label(x(0), 20, "one run: every row that arrived, by its number in the run", INK, 14)]
    parts += [
        label(12, LANES_TOP + rank * LANE + 15, f"rank {rank}", RANK_COLOURS[rank])
        for rank in range(lanes)
    ]
    for each in deliveries:
        top = LANES_TOP + each.rank * LANE + 3
        width = len(each.samples) * scale - 1
        colour = RANK_COLOURS[each.rank]
        parts.append(box(x(each.samples[0]), top, width, LANE - 6, colour))
    parts += [
        *mark(x(killed), 44, bottom, "kill -9 of a server", ALARM),
        *mark(x(stop), 44, bottom, "stop; go on with 3 ranks, larger batches", INK),
    ]
    rows = (("this run", [received[sample] for sample in range(total)]), ("unbroken", expected))
    for number, (name, contents) in enumerate(rows):
        top = strips + number * (STRIP + 6)
        parts.append(label(12, top + 17, name, INK))
        parts += [
            box(x(sample), top, scale + 0.3, STRIP, colour_of(row))
            for sample, row in enumerate(contents)
        ]
    end = strips + 2 * (STRIP + 6)
    verdict = f"{total} rows, coloured by their content: none lost, none repeated, all the same"
    parts.append(label(x(0), end + 16, verdict, INK))
    parts += [
        label(x(0), end + 48 + 18 * number, line, INK if number == 0 else FAINT, 12, mono=True)
        for number, line in enumerate(answer)
    ]
    height = end + 48 + 18 * len(answer)
    title = (
        "A run on four ranks whose server is killed goes on with three ranks; every row is that of "
        "an unbroken run"
    )
    return svg(height, title, parts)


def colour_of(row: np.ndarray) -> str:
    """Return a colour that follows from all tokens of a row."""
    hue = int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:2], "big") % 360
    return f"hsl({hue}, 45%, 62%)"


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a rectangle as SVG."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def label(x: float, y: float, text: str, colour: str, size: int = 13, *, mono: bool = False) -> str:
    """Return a line of text as SVG; y is its base line."""
    family = ' font-family="ui-monospace, monospace" xml:space="preserve"' if mono else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}"{family}>'
        f"{escape(text)}</text>"
    )


def mark(x: float, top: float, bottom: float, text: str, colour: str) -> list[str]:
    """Return an upright line with its label beside it as SVG."""
    line = (
        f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" '
        'stroke-width="2"/>'
    )
    return [line, label(x + 6, top + 10, text, colour)]


def medians(printed: str) -> dict[str, float]:
    """Return the median rate of each contender in the table that `benchmarks.delivered` prints."""
    table = printed[printed.index("delivered, ") :].partition("\n\n")[0].splitlines()[2:]
    rows = (re.split(r"\s{2,}", line.strip()) for line in table)
    return {name: float(median) for name, median, *_ in rows}


def drawn_rates(rates: dict[str, float]) -> str:
    """Return a bar for each contender as SVG, tokenfeed's in another colour.

    rates: million tokens/s by the contender's title.
    """
    bar, left = 22, 330
    scale = (WIDTH - left - 90) / max(rates.values())
    parts = [label(left, 20, "million tokens/s, batches of 32 x 2048", INK)]
    for place, (name, rate) in enumerate(sorted(rates.items(), key=lambda item: -item[1])):
        top = 32 + place * (bar + 4)
        is_own = name.startswith("tokenfeed")
        parts += [
            label(12, top + 16, name, INK),
            box(left, top, rate * scale, bar, RANK_COLOURS[0] if is_own else "#b8bec6"),
            label(left + rate * scale + 8, top + 16, f"{rate:,.0f}", INK),
        ]
    return svg(32 + len(rates) * (bar + 4) + 8, "Rates of data loaders", parts)


def svg(height: float, title: str, parts: Sequence[str]) -> str:
    """Return a picture of WIDTH by height.  title: what it shows, for who cannot see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="system-ui, sans-serif" role="img" aria-label="{title}">',
            box(0, 0, WIDTH, height, BACKGROUND),
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
