"""tokenfeed redact: documents and ranges, by any name, to one list; all of them or none."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, Serve, WriteTokens
from tests.faults.credentials import TOKEN, write_papers, write_token_file
from tests.server.ingest.running import ingested
from tests.support.ports import free_port
from tokenfeed.server.datasets.redactions.list_file import read_list
from tokenfeed.server.datasets.redactions.ranges import RedactionList, TokenRanges
from tokenfeed.tools.inspect import main as inspect
from tokenfeed.tools.redact.__main__ import main

DELIMITER = ("--document-end-token", "5")


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> list[str]:
    """Two files of documents of 40 tokens: 25 of them, and 10."""
    paths = []
    for name, count in (("a.bin", 1000), ("b.bin", 400)):
        tokens = np.arange(6, count + 6)
        tokens[39::40] = 5
        paths.append(str(write_tokens(tokens, name)))
    return paths


@pytest.fixture
def languages(write_tokens: WriteTokens) -> list[str]:
    """Files of one name and size in three folders of a corpus."""
    names = [f"corpus/{language}/0.bin" for language in ("en", "de", "fr")]
    return [str(write_tokens(np.arange(at, at + 1000), name)) for at, name in enumerate(names)]


def listed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    """Run it, and return what it prints as JSON."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def triples(path: object) -> list[tuple[int, int, int]]:
    content = read_list(str(path))
    assert content is not None
    return content.list_of(len(content.additions)).ranges.triples()


def test_documents_and_ranges_are_one_list(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents are counted over all files; a file has a number and a name."""
    found = listed(
        capsys,
        *corpus,
        *DELIMITER,
        "--document=24",
        "--document=25",
        "--range=b.bin:40:60",
        "--range=0:3:9",
        "--reason=ticket 7",
    )

    expected = [(0, 3, 9), (0, 960, 1000), (1, 0, 60)]
    assert triples(found["file"]) == expected
    assert found["list"] == RedactionList.of(0, TokenRanges.of(expected)).hash.hex()
    assert (found["ranges"], found["tokens"], found["documents"]) == (3, 106, 2)
    assert (found["fill"], found["erased_list"]) == (0, None)
    content = read_list(str(found["file"]))
    assert content is not None
    assert content.additions[0].reason == "ticket 7"


def test_documents_of_another_delimiter_are_not_added_to_a_list(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """They have other numbers, and what is taken out of a list cannot be put back."""
    path = listed(capsys, *corpus, *DELIMITER, "--document=3")["file"]
    before = triples(path)
    assert main([*corpus, "--document-end-token", "9", "--document=4"]) == 1
    problem = "error: --document-end-token: the list was made with 5 between documents"
    assert capsys.readouterr().err.startswith(problem)
    assert triples(path) == before


def test_a_fill_that_separates_documents_needs_another_list_only_where_there_is_one(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A list elsewhere would have to be named to all servers."""
    words = [*corpus, *DELIMITER, "--document=3", "--fill=5"]
    assert main(words) == 1
    assert capsys.readouterr().err.endswith("separates documents; pass another one\n")


def test_the_order_of_arguments_does_not_matter(
    corpus: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Replicas that were told the same have the same hash."""
    words = ["--document=3", "--range=1:40:60", "--document=1", "--range=0:100:140"]
    hashes = {
        listed(capsys, *corpus, *DELIMITER, *order, "--list", tmp_path / str(number))["list"]
        for number, order in enumerate((words, words[::-1], [*words[2:], *words]))
    }

    assert len(hashes) == 1


def test_more_is_added_to_the_list(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A run that has the older list goes on with it; what is in it already adds nothing."""
    first = listed(capsys, *corpus, "--range=0:3:9")
    second = listed(capsys, *corpus, "--range=0:9:12")
    again = listed(capsys, *corpus, "--range=0:4:12")

    assert second["lists"] == again["lists"] == [first["list"], second["list"]]
    assert triples(again["file"]) == [(0, 3, 12)]
    assert listed(capsys, *corpus) == again


def test_datasets_whose_files_have_the_same_names_have_lists_of_their_own(
    languages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the list of one of them keeps a server from opening the other."""
    en, de, fr = languages
    found = listed(capsys, en, de, "--range=1:0:5")
    other = listed(capsys, en, fr, "--range=1:100:107")

    assert (found["tokens"], other["tokens"]) == (5, 7)
    assert found["file"] != other["file"]


def test_a_list_is_found_after_all_files_of_a_dataset_are_moved(
    languages: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To another mount, or seen from another folder; else redacted tokens would be served."""
    found = listed(capsys, *languages, "--range=1:0:5")
    corpus = Path(languages[0]).parent.parent
    moved = corpus.rename(corpus.with_name("mount")) / "elsewhere"
    moved.mkdir()
    for name in ("en", "de", "fr"):
        (moved.parent / name).rename(moved / name)

    monkeypatch.chdir(moved)
    mixed = ["en/0.bin", f"{moved}/de/0.bin", "./fr/0.bin"]
    for paths in (["en/0.bin", "de/0.bin", "fr/0.bin"], mixed):
        assert listed(capsys, *paths)["list"] == found["list"]
    monkeypatch.chdir(moved / "en")
    assert listed(capsys, "0.bin", "../de/0.bin", "../fr/0.bin")["list"] == found["list"]


@pytest.mark.skipif(not find_spec("pyarrow"), reason="ingest needs pyarrow")
def test_an_id_is_all_of_its_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request to delete names what the source calls it."""
    from tests.server.ingest.corpus import make_tokenizer, write_jsonl

    rows = ({"text": f"page {n}", "id": f"user {n % 20}"} for n in range(60))
    pages = write_jsonl(tmp_path / "pages.jsonl", rows)
    tokenizer = make_tokenizer(tmp_path / "tokenizer.json")
    out = tmp_path / "out"
    common = ("--tokenizer", tokenizer, "--out", out, "--workers", "1")
    ingested(pages, *common, "--id-column", "id", "--shard-tokens", "100")

    found = listed(capsys, out, "--id", "user 7", "--id", "user 9")
    assert found["documents"] == 6
    assert main([str(out), "--id", "user 70"]) == 1
    assert "no document of 'train' has the id 'user 70'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--document=35", *DELIMITER], "35 is not in [0, 35)"),
        (["--document=-1", *DELIMITER], "-1 is not in [0, 35)"),
        (["--document=3"], "'train' are not known; pass --document-end-token to what reads its"),
        (["--id=x", *DELIMITER], "it has no ids"),
        (["--range=1:399:401"], "end at token 401 of file 1, which has only 400"),
        (["--range=1:0:9223372036854775807"], "end at token 9223372036854775807 of file 1, which"),
        (["--range=1:0:9999999999999999999"], "end at token 9999999999999999999 of file 1, which"),
        (["--range=2:0:1"], "no file is named '2'"),
        (["--range=" + "9" * 5000 + ":0:1"], "no file is named '999"),
        (["--range=c.bin:0:1"], "no file is named 'c.bin'"),
        (["--range=0:5:5"], "has no token"),
        (["--range=0:-1:5"], "is not FILE:FIRST:END"),
        (["--range=5:9"], "is not FILE:FIRST:END"),
        (["--range=0:1:9", "--fill=65536"], "--fill: 65536 is not in"),
        (["--range=0:1:9", "--reason", "x" * 1001], "has 1001 characters; the limit is 1000"),
        (["--erase"], "there is no list yet; pass --document, --id or --range"),
        (["--range=0:1:2", "--erase"], "pass the --document-end-token of its servers"),
        (["--document=1", "--document-end-token=5", "--fill=5"], "but it separates documents"),
        ([], "there is no list yet; pass --document, --id or --range"),
        (["--range=0:1:2", "--erase", "--wait-seconds=nan"], "--wait-seconds: nan is not in"),
        (["--range=0:1:2", "--wait", "a:1"], "--wait: waits for an erasure; pass --erase too"),
        (["--range=0:1:2", "--erase", "--wait", "a"], "target: 'a' is not"),
    ],
)
def test_what_is_wrong_writes_nothing(
    corpus: list[str], capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    """Also if it comes with ranges that are right."""
    named = [f"train={corpus[0]}", corpus[1]]
    given = words if words in ([], ["--erase"]) else [*words, "--range=0:50:60"]
    assert main([*named, *given]) == 1

    error = capsys.readouterr().err
    assert problem in error
    assert len(error) < 500
    left = [path for path in Path(corpus[0]).parent.iterdir() if path.suffix in (".jsonl", ".lock")]
    assert not left


def test_a_name_of_several_files_is_refused_with_their_numbers(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens of the wrong file would be taken out."""
    paths = [str(write_tokens(range(1, 90), f"{folder}/x.bin")) for folder in "ab"]

    assert main([*paths, "--range=x.bin:1:3"]) == 1
    assert "2 files are named 'x.bin'; pass the number of one of them: 0, 1" in (
        capsys.readouterr().err
    )


def test_the_fill_token_is_that_of_the_list(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is part of its hash."""
    assert listed(capsys, *corpus, "--range=0:1:9", "--fill=77")["fill"] == 77
    assert listed(capsys, *corpus, "--range=0:1:19")["fill"] == 77
    assert main([*corpus, "--range=0:1:29", "--fill=78"]) == 1
    assert "78 is not the token of this list, 77" in capsys.readouterr().err


def test_it_says_the_next_step(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A list by itself changes nothing."""
    assert main([*corpus, "--range=0:1:9"]) == 0
    shown = capsys.readouterr().out

    found = str(listed(capsys, *corpus)["list"])
    assert f'feed.redact("{found}", at_sample=' in shown
    assert "8 tokens in 1 range(s), replaced by token 0" in shown
    assert inspect(corpus) == 0
    assert f"redaction list: {found}" in capsys.readouterr().out


def test_two_at_once_lose_nothing(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each adds to what the other has written."""
    command = [sys.executable, "-m", "tokenfeed.tools.redact", *corpus]
    running = [
        subprocess.Popen(
            [*command, f"--range=0:{first}:{first + 1}"], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        for first in range(0, 8, 2)
    ]
    assert [one.wait(timeout=60) for one in running] == [0] * 4

    found = listed(capsys, *corpus)
    assert len(found["lists"]) == 4  # type: ignore[arg-type]
    assert triples(found["file"]) == [(0, first, first + 1) for first in range(0, 8, 2)]


def test_a_list_that_is_no_list_gets_no_lock(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The shards of a dataset are not to have other files beside them."""
    assert main([*corpus, "--range=0:1:9", "--list", corpus[0]]) == 1

    assert "is damaged" in capsys.readouterr().err
    assert not Path(f"{corpus[0]}.lock").exists()


def test_a_closed_stdout_is_an_error_before_anything_is_written(corpus: list[str]) -> None:
    """The hash of the list would be lost."""
    command = [sys.executable, "-m", "tokenfeed.tools.redact", *corpus, "--range=0:1:9"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "error: stdout: cannot be written: it is closed\n")
    assert not list(Path(corpus[0]).parent.glob(".*.jsonl"))


def test_a_damaged_list_is_an_error_in_one_line(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a server nor a command may guess what was taken out."""
    path = Path(str(listed(capsys, *corpus, "--range=0:1:9")["file"]))
    path.write_bytes(path.read_bytes()[:-2])
    capsys.readouterr()

    for command in (main, inspect):
        assert command(corpus) == 1
        error = capsys.readouterr().err
        assert error == f"error: {path}: is damaged; restore it from a replica or a backup\n"


def test_a_server_finds_the_list_that_its_option_names(
    serve: Serve, corpus: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The corpus may lie where nothing else can be written."""
    place = tmp_path / "a=b"
    found = listed(capsys, *corpus, "--range=0:1:9", "--list", place)
    server = serve("--data", f"train={corpus[0]}", corpus[1], "--redactions", f"train={place}")

    assert f"redactions opened dataset=train lists=1 latest={found['list']}" in server.stderr


def test_a_server_says_if_there_is_no_list_where_its_option_says(
    serve: Serve, corpus: list[str], tmp_path: Path
) -> None:
    """A misspelled name would take nothing out."""
    server = serve("--data", *corpus, "--redactions", tmp_path / "none")

    assert "redactions not found dataset=a file=none: " in server.stderr


def test_a_server_names_the_option_that_does_not_fit(
    corpus: list[str],
) -> None:
    """Of several datasets it has to be said whose list it is."""
    command = [sys.executable, "-m", "server", "--data", f"a={corpus[0]}", "--data", corpus[1]]
    done = subprocess.run(
        [*command, "--redactions", "list"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 1
    assert "--redactions: does not say of which dataset, a or b, it is; pass" in done.stderr


def test_a_server_goes_on_while_its_tokens_are_erased(
    serve: Serve,
    corpus: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It was started before there was a list. The command says when it has the new files; it asks
    with TLS and the token of the environment, as clients do.
    """
    papers, tokens = write_papers(tmp_path), write_token_file(tmp_path / "tokens.txt")
    options = ["--tls-cert", papers.cert, "--tls-key", papers.key, "--token-file", tokens]
    server = serve("--data", f"train={corpus[0]}", corpus[1], *options)
    monkeypatch.setenv("TOKENFEED_TLS_CA", papers.ca)
    monkeypatch.setenv("TOKENFEED_TOKEN", TOKEN)
    words = [*corpus, "--range=0:100:900", "--range=1:0:400", "--erase", *DELIMITER]
    with caplog.at_level("INFO"):
        assert main([*words, "--wait", server.address]) == 0

    assert f"{server.address} has taken it up, after " in caplog.text
    assert server.stderr.count("change=replaced by the file without its erased tokens") == 2
    listed(capsys, *corpus)
    assert "dataset failed" not in server.stderr


def test_servers_that_do_not_take_it_up_are_named(
    corpus: list[str],
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One with another dataset, one that is not there: the erasure itself is done."""
    server = serve("--data", corpus[1])
    words = [corpus[0], "--range=0:100:900", "--erase", *DELIMITER, "--wait-seconds=3"]
    assert main([*words, "--wait", server.address, "--wait=127.0.0.1:1"]) == 1

    assert f"{server.address} does not serve this dataset" in caplog.text
    assert "127.0.0.1:1 cannot be asked: " in caplog.text
    behind = f"not taken up after 3 s by {server.address}, 127.0.0.1:1"
    assert f"{behind}; the files are erased, run it again to wait" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["feed.example:{}", "dns:///feed.example:{}"])
def test_each_server_of_a_name_is_asked(
    serve: Serve,
    corpus: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    """A headless service of Kubernetes is one name of all replicas; who is behind is named."""
    port = free_port()
    serve("--data", *corpus, "--host", "127.0.0.1", port=port)
    serve("--data", *corpus, "--host", "127.0.0.2", "--immutable", port=port)
    found = ["127.0.0.1", "127.0.0.2"]

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "feed.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    name = target.format(port)
    words = [*corpus, "--range=0:100:900", "--erase", *DELIMITER, "--wait", name]
    with caplog.at_level("INFO"):
        assert main([*words, "--wait-seconds=8"]) == 1
    assert f"{name} (ipv4:127.0.0.1:{port}) has taken it up, after " in caplog.text
    behind = f"{name} (ipv4:127.0.0.2:{port})"
    assert f"{behind} still has tokens that are erased" in caplog.text
    assert f"not taken up after 8 s by {behind}; the files are" in capsys.readouterr().err

    found.pop()
    assert main(words) == 0


def test_a_name_that_is_unknown_ends_the_wait_in_time(
    corpus: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver of a system may hang for half a minute."""
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(30) and [])
    words = [*corpus, "--range=0:100:900", "--erase", *DELIMITER, "--wait-seconds=0.5"]
    try:
        began = time.monotonic()
        assert main([*words, "--wait=feed.example:1"]) == 1
        assert time.monotonic() - began < 20
    finally:
        ended.set()
    assert "feed.example:1 is not resolved yet" in caplog.text
