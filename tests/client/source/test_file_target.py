"""From what users write after file: to paths, names and options. No file is looked at."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client import InvalidRequest, RemoteBatches
from tokenfeed.client.source.file_target import is_local_target, parse_local_target

Words = tuple[tuple[str, ...], ...]


def words(*targets: str) -> Words:
    return parse_local_target(targets).words


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("file:train.bin", (("train.bin",),)),
        ("file:a.bin,b.bin", (("a.bin", "b.bin"),)),
        ("file:data/", (("data/",),)),
        ("file:data/*.bin", (("data/*.bin",),)),
        ("file:data/shard-0?.bin", (("data/shard-0?.bin",),)),
        ("file:data/shard-?", (("data/shard-?",),)),
        ("file:web=web/,code=code/", (("web=web/",), ("code=code/",))),
        ("file:web=a.bin,b.bin,code=c.bin", (("web=a.bin", "b.bin"), ("code=c.bin",))),
        ("file:a.bin,code=c.bin", (("a.bin",), ("code=c.bin",))),
        ("file:./k=1/a.bin", (("./k=1/a.bin",),)),
        ("file:/data/k=1/a.bin", (("/data/k=1/a.bin",),)),
        ("file:/data/a.bin", (("/data/a.bin",),)),
        ("file:///data/a.bin", (("/data/a.bin",),)),
        ("file:a=///data/a.bin", (("a=/data/a.bin",),)),
        ("file:größe.bin", (("größe.bin",),)),
    ],
)
def test_a_target_is_read_as_it_is_written(target: str, expected: Words) -> None:
    """As the words after each --data of a server."""
    assert words(target) == expected


@pytest.mark.parametrize(
    ("target", "path", "options"),
    [
        ("a.bin?dtype=uint32", "a.bin", {"dtype": "uint32"}),
        (
            "a.bin?dtype=uint32&read=pread&format=raw",
            "a.bin",
            {"dtype": "uint32", "read": "pread", "format": "raw"},
        ),
        ("a.bin?immutable", "a.bin", {"immutable": ""}),
        ("?.bin?read=map", "?.bin", {"read": "map"}),
        ("data/*?read=map", "data/*", {"read": "map"}),
        ("a?b=c/d?e.bin", "a?b=c/d?e.bin", {}),
        ("a.bin?READ=map", "a.bin?READ=map", {}),
    ],
)
def test_options_come_last_and_every_other_question_mark_is_a_globs(
    target: str, path: str, options: dict[str, str]
) -> None:
    """A glob has to mean here what it means in a shell."""
    found = parse_local_target(f"file:{target}")

    assert (found.words, found.options) == (((path,),), options)


def test_several_targets_are_one_corpus() -> None:
    """As several servers are one."""
    assert words("file:a.bin", "file:b.bin,c.bin") == (("a.bin", "b.bin", "c.bin"),)
    assert words("file:a=a.bin", "file:b.bin", "file:c=c.bin") == (
        ("a=a.bin", "b.bin"),
        ("c=c.bin",),
    )


def test_several_targets_have_the_same_options() -> None:
    """They are of one dataset, which has one type."""
    both = ["file:a.bin?read=map&dtype=uint32", "file:b.bin?dtype=uint32&read=map"]

    assert parse_local_target(both).options == {"read": "map", "dtype": "uint32"}
    with pytest.raises(InvalidRequest, match="target: has different options"):
        parse_local_target(["file:a.bin?dtype=uint32", "file:b.bin"])


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands it behind file:."""
    monkeypatch.setenv("HOME", "/home/ada")

    assert words("file:~/a.bin,web=~/b.bin") == (("/home/ada/a.bin",), ("web=/home/ada/b.bin",))
    assert words("file:data/~/a.bin") == (("data/~/a.bin",),)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("file:", "names no path; write file:PATH"),
        ("file:,a.bin", "names no path; write file:PATH"),
        ("file:a.bin,", "names no path; write file:PATH"),
        ("file:web=", "names no path; write file:PATH"),
        ("file:?dtype=uint32", "names no path; write file:PATH"),
        ("file://host/a.bin", "names a host; write file:/PATH"),
        ("file://", "names a host; write file:/PATH"),
        ("file:a.bin?dtype=uint16&dtype=uint32", "has an option twice"),
        ("file:a\0b.bin", "has a character that no path may have"),
        ("file:~\0", "has a character that no path may have"),
        ("file:~\ud800/a.bin", "has a character that no path may have"),
        (["file:a.bin", "localhost:1"], "has servers and files; pass either of them"),
        (["localhost:1", "file:a.bin"], "has servers and files; pass either of them"),
        (["file:a.bin", 5], "has servers and files; pass either of them"),
        ([], "names no server"),
        (Path("a.bin"), "is not an address; write 'file:a.bin'"),
        (None, "is not an address; write HOST:PORT, or file:PATH"),
        ("train.bin", "is not an address; write HOST:PORT, or file:train.bin for local files"),
        ("/data/", "is not an address; write HOST:PORT, or file:/data/ for local files"),
        ("~/data:1/*.bin", "write HOST:PORT, or file:~/data:1/*.bin for local files"),
        ("hf://datasets/a/b", "is not read over the network: download it (hf download), run toke"),
        ("s3a://bucket/a.bin", "has another scheme here: write s3://bucket/a.bin"),
        ("http://x.org/a.bin", "download it and write file:PATH, or https://; of a server write H"),
        ("http://host:50051", "has a scheme, and an address has none; write host:50051"),
        ("https://host:1/", "write host:1, and pass credentials=Credentials(tls_ca=...)"),
        ("grpc://host", "has a scheme, and an address has none; write HOST:PORT"),
        (["host:1", "s3://bucket"], "has servers and files; pass either of them"),
        ("dns:///host", "'dns:///host' is not an address; write HOST:PORT"),
    ],
)
def test_what_is_no_target_is_refused_before_any_file_is_looked_at(
    target: Any, problem: str
) -> None:
    """With the cure, where the feed is made: a job in a queue finds it late otherwise."""
    with pytest.raises(InvalidRequest, match=re.escape(problem)) as caught:
        RemoteBatches(target, 2, 8)

    assert caught.value.subject == "target"


TEXT = st.text(st.sampled_from("ab~/=,?&.*:-#\0\ud800\n ") | st.characters(), max_size=20)


@given(st.lists(st.builds("file:{}".format, TEXT), min_size=1, max_size=3))
@example(["file:a?dtype=\n"])
@example(["file:~root\0/x"])
def test_whatever_a_target_is_it_is_paths_or_refused(targets: list[str]) -> None:
    """It comes from a config file, and an error of Python says nothing about it."""
    assert is_local_target(targets)
    with suppress(InvalidRequest):
        assert all(each and all(each) for each in parse_local_target(targets).words)


@given(st.text() | st.lists(st.text() | st.integers()) | st.integers() | st.binary())
def test_whatever_is_passed_is_local_or_not(target: Any) -> None:
    with suppress(InvalidRequest):
        assert is_local_target(target) in (True, False)
