"""python -m tokenfeed.tools.inspect: what a server would make of files, before it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tokenfeed.tools.inspect import main


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Its output, if it succeeds."""
    assert main([str(word) for word in words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_it_says_what_a_file_is_taken_for_and_why(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, write_tokens(range(100, 2100)), "--tokens", "3")

    assert "dataset train\n  format: raw (no known header)" in text
    assert "dtype: uint16 is assumed for 1 file(s); --dtype overrides it" in text
    assert "served as: uint16, as stored" in text
    assert "tokens: 2,000 in 1 file(s)" in text
    assert "first tokens: 100 101 102\n" in text


def test_it_says_where_the_tokens_begin_and_how_they_would_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(70_000, dtype="<i8"))

    text = said(capsys, path)

    assert "format: npy (header of a (70000,) array)" in text
    assert "dtype: int64\n" in text
    assert "served as: uint32, by the checked tokens; a server checks every token" in text
    assert f"{path}: 70,000 tokens, from byte 128 on" in text


def test_it_says_what_a_server_that_knows_the_vocabulary_would_serve(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tokens(range(2000), dtype="<i8")

    options = ("--dtype", "int64", "--vocab-size")
    assert "served as: uint16" in said(capsys, path, *options, "50257")
    assert "served as: uint32" in said(capsys, path, *options, "128256")


def test_it_counts_documents_and_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(30):
        path = tmp_path / f"{index:02}.ds"
        np.arange(50, dtype="<u2").tofile(path)
        np.array([20, 50], dtype="<u8").tofile(f"{path}.index")

    text = said(capsys, tmp_path)

    assert "format: datatrove (00.ds.index beside it)" in text
    assert "tokens: 1,500 in 30 file(s)" in text
    assert "documents: 60, known for 30 file(s)" in text
    assert f"00.ds: 50 tokens, 2 documents ({tmp_path}/00.ds.index)" in text
    assert "... and 10 more" in text


def test_it_decodes_the_first_tokens(
    shared_data: Path, write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError)
    tokenizer = shared_data / "gpt2-tokenizer.json"
    tokens = tokenizers.Tokenizer.from_file(str(tokenizer)).encode("First Citizen: speak").ids
    text = said(capsys, write_tokens(tokens), "--tokenizer", tokenizer)

    assert "decoded: 'First Citizen: speak'" in text


@pytest.mark.parametrize("what", ["nothing", "jsonl", "tokenizer"])
def test_an_error_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    path = tmp_path / "x.bin"
    path.write_text('{"text": "one line of it is enough to be seen"}\n')
    words = {
        "nothing": [tmp_path / "none.bin"],
        "jsonl": [path],
        "tokenizer": [path, "--format", "raw", "--dtype", "uint8", "--tokenizer", os.devnull],
    }[what]

    assert main([str(word) for word in words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_closed_pipe_causes_no_traceback(write_tokens: WriteTokens) -> None:
    """For example `| head`."""
    command = [sys.executable, "-m", "tokenfeed.tools.inspect", str(write_tokens(range(100)))]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=20
        )

    assert done.returncode == 1
    assert done.stderr == "error: stdout: cannot be written: No space left on device\n"
