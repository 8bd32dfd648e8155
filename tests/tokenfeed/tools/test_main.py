"""tokenfeed describe and show: what a server serves, and one batch of it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client import RemoteBatches
from tests.client.conftest import ScriptedServer
from tests.conftest import Serve, WriteTokens
from tests.support import reference
from tests.support.packed_corpora import write_corpus
from tokenfeed.tools.__main__ import build_parser, main
from tokenfeed.tools.bench import measure

Captured = pytest.CaptureFixture[str]


def test_describe_says_what_is_served(
    serve: Serve, write_tokens: WriteTokens, capsys: Captured
) -> None:
    """The first thing to type at a new address."""
    train, val = write_tokens(range(1, 1001)), write_tokens(range(1, 51), "val.bin")
    server = serve("--data", train, "--data", val)

    assert main(["describe", server.address, "--context-length", "100"]) == 0

    shown = capsys.readouterr().out
    assert "dataset train\n  tokens: 1,000 uint16 in 1 file(s)\n" in shown
    assert "  rows of 100 tokens: random-1 900, shuffled-1 9, sequential-1 9, blocks-1 0\n" in shown
    assert "dataset val\n" in shown
    assert "orders: random-1, shuffled-1, sequential-1, packed-1, padded-1, blocks-1\n" in shown


def test_describe_counts_the_rows_of_an_order_over_documents(
    serve: Serve, tmp_path: Path, capsys: Captured
) -> None:
    """How long is an epoch? The server makes the rows for it."""
    corpus = write_corpus(tmp_path / "train", [[10, 11, 30], [1]], "train")
    other = write_corpus(tmp_path / "val", [[10]], "val")
    address = serve(*corpus.words, *other.words).address
    asked = ["describe", address, "--dataset", "train", "--context-length", "20"]

    assert main([*asked, "--order", "packed"]) == 0
    assert ", sequential-1 2, blocks-1 0, packed-1 3\n" in capsys.readouterr().out
    assert main([*asked, "--order", "padded", "--long", "drop"]) == 0
    shown = capsys.readouterr().out
    assert ", padded-1 2\n" in shown
    assert "dataset val" not in shown


def test_show_prints_a_batch_with_its_samples(
    serve: Serve, write_tokens: WriteTokens, capsys: Captured
) -> None:
    """Which tokens are in sample 7? Without torch, without a trainer."""
    server = serve("--data", write_tokens(range(100, 200)))
    arguments = ["--order", "sequential", "--batch-size", "2", "--context-length", "3"]

    assert main(["show", server.address, *arguments, "--start-sample", "7"]) == 0

    assert capsys.readouterr().out == "sample 7: 121 122 123 124\nsample 8: 124 125 126 127\n"


@pytest.mark.parametrize(
    ("tokenizer", "rows"),
    [
        ([], ["97 98 99 100 101 | 102 103 104", "105 106 + 6 padding"]),
        (["--tokenizer", "bytes"], ["'abcde' | 'fgh'", "'ij' + 6 padding"]),
    ],
)
def test_show_tells_pieces_from_each_other_and_from_padding(
    serve: Serve, tmp_path: Path, capsys: Captured, tokenizer: list[str], rows: list[str]
) -> None:
    """Padding is no token of the corpus, and a border is no space between two words."""
    corpus = write_corpus(tmp_path / "corpus", [[5, 3], [2]], first=97)
    arguments = ["--order", "packed", "--batch-size", "2", "--context-length", "7", *tokenizer]

    for target in (serve(*corpus.words).address, corpus.target):
        assert main(["show", target, *arguments]) == 0

        places = [reference.place("shuffled-1", 0, 2, sample) for sample in range(2)]
        shown = [f"sample {sample}: {rows[place]}\n" for sample, place in enumerate(places)]
        assert capsys.readouterr().out == "".join(shown)


def test_show_has_the_first_tokens_of_a_long_row(tmp_path: Path, capsys: Captured) -> None:
    """With the number of all that it has, without padding."""
    corpus = write_corpus(tmp_path / "corpus", [[14, 4]])
    arguments = ["--order", "packed", "--batch-size", "1", "--context-length", "20"]

    assert main(["show", corpus.target, *arguments]) == 0

    first = " ".join(map(str, range(1, 15)))
    assert capsys.readouterr().out == f"sample 0: {first} | 15 16 ... (18 tokens) + 3 padding\n"


@pytest.mark.parametrize(
    ("long", "rows"),
    [
        ("cut", ["1 2 3 4 5 6 7 8", "8 9 10 11 12 + 3 padding", "13 14 15 + 5 padding"]),
        ("truncate", ["1 2 3 4 5 6 7 8", "13 14 15 + 5 padding"]),
        ("drop", ["13 14 15 + 5 padding"]),
    ],
)
def test_commands_read_long_documents_as_a_feed_does(
    tmp_path: Path, capsys: Captured, long: str, rows: list[str]
) -> None:
    """--long of show and bench."""
    corpus = write_corpus(tmp_path / "corpus", [[12, 3]])
    arguments = ["--order", "padded", "--long", long, "--context-length", "7"]

    assert main(["show", corpus.target, *arguments, "--batch-size", str(len(rows))]) == 0
    found = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(": ")[2] for line in found) == sorted(rows)

    assert main(["bench", corpus.target, *arguments, "--seconds", "0.1"]) == 0
    assert "million tokens/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["describe", "localhost"], "write HOST:PORT"),
        (["describe", "localhost:1"], "localhost:1"),
        (["describe", "localhost:1", "--dataset", "\udcff"], r"--dataset: '\udcff' is not text"),
        (["top", "file:train.bin"], "target: is not a server"),
        (["describe", "localhost:1", "--order", "packed"], "--order: needs --context-length"),
        (["describe", "localhost:1", "--long", "cut"], "--long: needs --order"),
        (
            ["describe", "x:1", "--context-length", "9", "--order", "packed", "--long", "drop"],
            "--long: 'drop' is not one of cut; the order is packed-1",
        ),
        (["show", "localhost:1", "--batch-size", "0"], "--batch-size: 0"),
        (["show", "localhost:1", "--seed", "-1"], "--seed: -1"),
        (["show", "localhost:1", "--context-length", "-1"], "--context-length: -1"),
        (["show", "localhost:1", "--start-sample", "-1"], "--start-sample: -1"),
        (["show", "localhost:1", "--start-sample", str(2**63)], f"--start-sample: {2**63} is not"),
        (["show", "localhost:1", "--start-sample", str(2**63 - 3)], "--start-sample: 92"),
        (["show", "localhost:1", "--long", "drop"], "--long: 'drop' "),
        (["bench", "localhost:1", "--order", "packed", "--long", "drop"], "--long: 'drop' "),
        (["bench", "localhost:1", "--seconds", "-1"], "--seconds: has to be in"),
        (["bench", "localhost:1", "--seconds", "nan"], "--seconds: has to be in"),
        (["show", "localhost:1", "--tokenizer", "/dev/null"], "--tokenizer"),
    ],
)
def test_what_cannot_be_done_ends_in_one_line(
    arguments: list[str], problem: str, capsys: Captured
) -> None:
    """No traceback for a typing error, and the option under the name that was typed."""
    assert main(arguments) == 1

    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert problem in line
    assert line.count("\n") == 1


def test_a_refusal_of_the_server_is_shown(
    serve: Serve, write_tokens: WriteTokens, capsys: Captured
) -> None:
    """In the server's own words, about the option that was typed."""
    server = serve("--data", write_tokens(range(10)))

    assert main(["show", server.address, "--context-length", "10"]) == 1

    assert "--context-length: 10 is not in [1, 10)" in capsys.readouterr().err


def test_a_name_that_stdout_cannot_encode_is_escaped(
    serve: Serve, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal of another language a command goes on."""
    server = serve("--data", write_tokens(range(1, 100), "naïve.bin"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    assert main(["describe", server.address]) == 0

    assert b"\ndataset na\\xefve\n" in written.getvalue()


def test_every_command_has_help() -> None:
    """And a default that it shows."""
    assert "describe" in build_parser().format_help()
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


def test_bench_says_how_fast_batches_arrive(
    scripted: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first question on a new machine."""
    arguments = ["--batch-size", "4", "--context-length", "10", "--seconds", "0.2"]
    arguments += ["--order", "random"]

    assert main(["bench", scripted.address, *arguments]) == 0

    found = re.fullmatch(
        r"([\d,]+) batches  [\d.]+ million tokens/s  \d+ % of the time waiting for data  "
        r"first batch after \d+ ms\n",
        capsys.readouterr().out,
    )
    assert found is not None
    assert int(found[1].replace(",", "")) > 10


def test_a_live_line_is_for_terminals_alone(scripted: ScriptedServer) -> None:
    """A log must not be full of it."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for progress, shown in ((Terminal(), True), (io.StringIO(), False)):
        with RemoteBatches(scripted.address, 4, 10, order="random") as feed:
            measure(feed, 0.7, progress)
        assert ("million tokens/s" in progress.getvalue()) is shown


def test_the_commands_of_a_trainer_need_no_server() -> None:
    """Its image has none."""
    code = (
        "import runpy, sys\n"
        "class Without:\n"
        "    def find_spec(self, name, *_):\n"
        "        if f'{name}.'.startswith('tokenfeed.server.'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "sys.argv = ['client', '--help']\n"
        "runpy.run_module('tokenfeed.tools', run_name='__main__')\n"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert "explain" in found.stdout, found.stderr
