"""python -m server, from its first word to its exit code: what starts, and what does not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.conftest import ROOT, Serve, Server, WriteTokens
from tests.server.requests import batches
from tests.support import forked
from tests.support.ports import free_port
from tests.support.waiting import least_seconds
from tokenfeed import __version__
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame

START_SECONDS = 60.0
STOP_SECONDS = 2.0
LOG_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) tokenfeed\.\w+ ."
)
# Takes from a process, root's as well, the right to read what its mode forbids.
OBEY_FILE_MODES = (
    "import ctypes, os, sys; libc = ctypes.CDLL(None);"
    " [libc.prctl(24, capability, 0, 0, 0) for capability in (1, 2)];"
    " os.execv(sys.argv[1], sys.argv[1:])"
)
HAS_IPV6 = Path("/proc/net/if_inet6").exists() and "lo" in Path("/proc/net/if_inet6").read_text()
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")


def run(*arguments: str | Path, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    words = list(map(str, arguments))
    if "--port" not in words:
        words += ["--port", "0"]
    try:
        return forked.run("server", *words, timeout=START_SECONDS, wrapper=wrapper)
    except subprocess.TimeoutExpired as still_running:
        pytest.fail(f"it started: {still_running.stdout!r}")


def refusal(*arguments: str | Path, wrapper: tuple[str, ...] = ()) -> str:
    """Run a server that must not start, and return its one line of error."""
    done = run(*arguments, wrapper=wrapper)
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if not LOG_LINE.match(line)]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: "), done.stderr
    return lines[0].removeprefix("error: ")


def ask(address: str, request: pb.GetBatchRequest) -> np.ndarray:
    """Return the rows of a short stream, uint16[n, T + 1]."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        frames = [frame.decode(found) for found in call(request.SerializeToString(), timeout=10)]
    tokens = np.concatenate([found.tokens for found in frames])
    return tokens.view(f"<u{frames[0].token_bytes}").reshape(
        -1, request.stream.stage.context_length + 1
    )


def describe(server: Server) -> list[pb.Dataset]:
    with grpc.insecure_channel(server.address) as channel:
        answer = channel.unary_unary("/tokenfeed.v1.TokenFeed/Describe")(b"", timeout=10)
    return list(pb.DescribeResponse.FromString(answer).datasets)


def in_order(context_length: int, row_count: int, dataset: str = "") -> pb.GetBatchRequest:
    """Request the first windows of a dataset, in the order of its files."""
    return batches(
        batch_size=row_count, context_length=context_length, dataset=dataset,
        order="sequential-1", num_batches=1,
    )  # fmt: skip


@contextmanager
def listening(family: socket.AddressFamily, host: str) -> Iterator[int]:
    """Make a socket listen on a free port, and return the port."""
    with socket.socket(family, socket.SOCK_STREAM) as taken:
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind((host, 0))
        taken.listen()
        yield taken.getsockname()[1]


# Files that cannot be served.


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The commonest mistake: a path that is wrong on this machine."""
    line = refusal("--data", tmp_path / "nothing.bin")
    assert line == f"{tmp_path}/nothing.bin: cannot be read: No such file or directory"


def test_a_missing_shard_is_named(tmp_path: Path, write_tokens: WriteTokens) -> None:
    """Serving the shards that are there would be another corpus."""
    present = write_tokens(range(100), "present.bin")
    line = refusal("--data", present, tmp_path / "missing.bin")
    assert line.startswith(f"{tmp_path}/missing.bin: ")


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    """This is the case for a volume that is not mounted."""
    link = tmp_path / "link.bin"
    link.symlink_to(tmp_path / "away.bin")
    assert refusal("--data", link).startswith(f"{link}: ")


def test_an_empty_file_is_named(tmp_path: Path, write_tokens: WriteTokens) -> None:
    """A tokenizer that failed leaves one behind."""
    empty = write_tokens([], "empty.bin")
    assert refusal("--data", empty) == f"{empty}: is empty"
    assert refusal("--data", write_tokens(range(100), "full.bin"), empty) == f"{empty}: is empty"


def test_a_file_that_ends_within_a_token_is_named(tmp_path: Path) -> None:
    """It was truncated while it was copied, or it has another dtype."""
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"x" * 101)
    line = refusal("--data", odd)
    assert line.startswith(f"{odd}: has 101 bytes")
    assert "--dtype" in line
    odd.write_bytes(b"x" * 102)
    assert refusal("--data", odd, "--dtype", "uint32").startswith(f"{odd}: has 102 bytes")


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    """One folder too high, or the download has not begun."""
    (tmp_path / "README.md").write_text("The shards are elsewhere.")
    (tmp_path / "deeper.bin").mkdir()
    line = refusal("--data", tmp_path)
    assert line.startswith(f"{tmp_path}: ")
    assert "*.bin" in line


def test_a_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    """The shell does not expand it if it is quoted, and reports no error either."""
    assert refusal("--data", tmp_path / "train_*.bin") == f"{tmp_path}/train_*.bin: matches no file"


def test_a_path_that_is_not_a_regular_file_is_named(tmp_path: Path) -> None:
    """Opening a pipe would wait forever, and a device has no end."""
    pipe = tmp_path / "pipe.bin"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        assert refusal("--data", f"odd={path}").startswith(f"{path}: is not a regular file")


def test_a_file_in_place_of_a_folder_is_named(write_tokens: WriteTokens) -> None:
    """stat fails here with another error than "no such file"."""
    inside = write_tokens(range(100)) / "train.bin"
    assert refusal("--data", inside).startswith(f"{inside}: cannot be read: Not a directory")


@pytest.mark.parametrize("kind", ["file", "folder", "file in a folder"])
def test_what_may_not_be_read_is_named(write_tokens: WriteTokens, kind: str) -> None:
    """In production the server runs as its own user, and the files belong to another."""
    path = write_tokens(range(100), "private/train.bin")
    closed = path if kind == "file" else path.parent
    options = path.parent if kind == "folder" else path
    mode = closed.stat().st_mode
    closed.chmod(0)
    try:
        line = refusal("--data", options, wrapper=(sys.executable, "-c", OBEY_FILE_MODES))
    finally:
        closed.chmod(mode)
    assert line == f"{options}: cannot be read: Permission denied"


def test_a_path_with_a_line_break_is_still_one_line(tmp_path: Path) -> None:
    """A path must not be able to forge a line of the log."""
    path = tmp_path / "odd\nerror: all is well.bin"
    path.write_bytes(b"x")
    assert "all is well" in refusal("--data", f"odd={path}")


# Tokens that cannot be right.


def test_a_token_outside_the_vocabulary_is_named_with_its_place(write_tokens: WriteTokens) -> None:
    """It would be an index error on the GPU, days later."""
    tokens = np.arange(5000) % 1000
    tokens[4321] = 1000
    path = write_tokens(tokens)
    line = refusal("--data", path, "--vocab-size", "1000")
    assert line.startswith(f"{path}: token 4321 is 1000")
    assert "--vocab-size 1000" in line


def test_the_greatest_token_of_the_vocabulary_is_served(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """The limit is exact: ids are counted from zero."""
    serve("--data", write_tokens(np.arange(5000) % 1000), "--vocab-size", 1000)


def test_a_token_outside_the_vocabulary_is_found_in_any_shard(write_tokens: WriteTokens) -> None:
    """One shard of another tokenizer among a hundred is the likely case."""
    good, bad = write_tokens([1] * 99, "0.bin"), write_tokens([1] * 98 + [60_000], "1.bin")
    assert refusal("--data", good, bad, "--vocab-size", "50257").startswith(f"{bad}: token 98 is")


@pytest.mark.slow
def test_every_token_of_a_large_corpus_is_checked_on_request(tmp_path: Path, serve: Serve) -> None:
    """Above 1 GiB the start takes seconds for a sample, or minutes for all on request."""
    path = tmp_path / "large.bin"
    place = (1 << 28) + 3001  # between two of the sampled blocks
    with path.open("wb") as file:
        file.truncate((1 << 30) + (1 << 20))  # a hole: it takes no room on the disk
        file.seek(2 * place)
        file.write(b"\xff\xff")
    serve("--data", path, "--vocab-size", 50257).stop()
    line = refusal("--data", path, "--vocab-size", "50257", "--check-all-tokens")
    assert line.startswith(f"{path}: token {place} is 65535")


def test_the_sample_of_a_large_corpus_reaches_its_last_token(tmp_path: Path) -> None:
    """A file with something else at its end is found without looking at all of it."""
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate((1 << 30) + (1 << 20))
        file.seek(-2, os.SEEK_END)
        file.write(b"\xff\xff")
    line = refusal("--data", path, "--vocab-size", "50257")
    assert line.startswith(f"{path}: token {(1 << 29) + (1 << 19) - 1} is 65535")


def test_uint32_tokens_are_not_served_as_uint16(serve: Serve, write_tokens: WriteTokens) -> None:
    """Every second token would be 0 or 1, and the loss would fall nicely."""
    tokens = np.random.default_rng(0).integers(0, 100_000, 4000)
    path = write_tokens(tokens, dtype="<u4")
    line = refusal("--data", path)
    assert line.startswith(f"{path}: ")
    assert "--dtype uint32" in line
    assert "--dtype uint16" in line

    told = serve("--data", path, "--dtype", "uint32")
    np.testing.assert_array_equal(ask(told.address, in_order(999, 1))[0], tokens[:1000])
    insisted = serve("--data", path, "--dtype", "uint16")
    halves = tokens.astype("<u4").view("<u2")
    np.testing.assert_array_equal(ask(insisted.address, in_order(999, 1))[0], halves[:1000])


# Arguments that do not fit together.


def test_two_datasets_of_one_name_are_refused(write_tokens: WriteTokens) -> None:
    """One of them would silently not be served."""
    one, two = write_tokens(range(100), "a/train.bin"), write_tokens(range(100), "b/train.bin")
    line = refusal("--data", one, "--data", two)
    assert line.startswith("--data: ")
    for named in ("'train'", str(one), str(two), "NAME="):
        assert named in line


def test_a_name_that_cannot_travel_is_refused_with_the_cure(write_tokens: WriteTokens) -> None:
    """The file may be called what it likes: NAME= is what goes over the wire."""
    path = write_tokens(range(100), "my tokens.bin")
    line = refusal("--data", path)
    assert line.startswith(f"{path}: ")
    assert f"pass one: 'NAME={path}'" in line


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "-1"),
        ("--port", "65536"),
        ("--port", "99999999999999999999"),
        ("--vocab-size", "0"),
        ("--vocab-size", "-5"),
        ("--vocab-size", "+5"),
        ("--vocab-size", "1_000"),
        ("--vocab-size", "50k"),
        ("--max-batch-bytes", "0"),
        ("--max-batch-bytes", str(1 << 64)),
        ("--warm-up-bytes", "-1"),
        ("--drain-seconds", "inf"),
        ("--send-timeout-seconds", "86401.0"),
    ],
)
def test_a_number_outside_its_range_is_named_with_its_flag(
    write_tokens: WriteTokens, flag: str, value: str
) -> None:
    """A server that starts on invalid options fails later, for its users."""
    line = refusal("--data", write_tokens(range(100)), flag, value)
    assert line.startswith(f"{flag}: ")
    assert value in line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--status",), "--status: needs --metrics-port"),
        (("--metrics-port", "70000"), "--metrics-port: 70000 is not in"),
        (("--metrics-port", "0", "--metrics-host", "no such host"), "--metrics-host: 'no such"),
        (("--metrics-host", "0.0.0.0"), "--metrics-host: needs --metrics-port"),
        (("--status-token-file", "/nowhere"), "--status-token-file: cannot be read"),
    ],
)
def test_metrics_that_cannot_be_served_are_an_error(
    write_tokens: WriteTokens, arguments: tuple[str, ...], problem: str
) -> None:
    """A server without the metrics that were asked for would be found out in an incident."""
    assert refusal("--data", write_tokens(range(100)), *arguments).startswith(problem)


def test_a_cache_in_a_store_is_refused_before_text_is_ingested(tmp_path: Path) -> None:
    """It would be a folder "s3:" of the current one, and no other machine would find it."""
    text = tmp_path / "a.txt"
    text.write_text("abc")
    words = ("--data", text, "--tokenizer", "bytes", "--cache-dir", "s3://bucket/cache")
    assert refusal(*words).startswith("--cache-dir: is 's3://bucket/cache', but is written on")


def test_checking_all_tokens_needs_something_to_check_them_against(
    write_tokens: WriteTokens,
) -> None:
    """Without a vocabulary it would check nothing, but seem to."""
    line = refusal("--data", write_tokens(range(100)), "--check-all-tokens")
    assert line.startswith("--check-all-tokens: ")
    assert "--vocab-size" in line


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--data",),
        ("--data", "train.bin", "--port", "http"),
        ("--data", "train.bin", "--dtype", "int12"),
        ("--data", "train.bin", "--dtype", "train=int12"),
        ("--data", "train.bin", "--format", "parquet"),
        ("--data", "train.bin", "--log-level", "loud"),
        ("--data", "train.bin", "--no-such-flag"),
        ("train.bin",),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_2_with_the_usage(
    arguments: tuple[str, ...],
) -> None:
    """What the shell's own tools do; 1 is for what is wrong with the files or the port."""
    done = run(*arguments, *(() if "--port" in arguments else ("--port", "0")))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage: python -m server")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("word", ["1", "-5", "2k", "2147483648"])
def test_a_number_of_tokens_of_a_row_that_is_none_is_refused(
    write_tokens: WriteTokens, word: str
) -> None:
    """A row has a token and its target."""
    line = refusal("--data", write_tokens(range(100)), f"--row-tokens={word}")
    assert line == f"--row-tokens: is {word!r}; it takes a number from 2 to 2147483647"


# Addresses that cannot be had.


def test_a_port_on_which_another_server_listens_is_refused(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """gRPC would share it, and every other connection would go to yesterday's corpus."""
    path = write_tokens(range(100))
    port = serve("--data", path).address.rpartition(":")[2]
    for host in ((), ("--host", "127.0.0.1"), *([("--host", "::1")] if HAS_IPV6 else [])):
        line = refusal("--data", path, "--port", port, *host)
        assert line.startswith("--port: ")
        assert port in line


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_port_that_is_taken_for_ipv4_alone_is_refused(
    write_tokens: WriteTokens, host: str
) -> None:
    """gRPC alone would bind only IPv6, and IPv4 clients would reach the other process."""
    with listening(socket.AF_INET, host) as port:
        line = refusal("--data", write_tokens(range(100)), "--port", str(port))
    assert line.startswith("--port: ")
    assert str(port) in line


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "::1"])
def test_a_port_that_is_taken_for_ipv6_alone_is_refused(
    write_tokens: WriteTokens, host: str
) -> None:
    """The same the other way round: "localhost" is IPv6 first on most machines."""
    with listening(socket.AF_INET6, host) as port:
        line = refusal("--data", write_tokens(range(100)), "--port", str(port))
    assert line.startswith("--port: ")
    assert str(port) in line


@pytest.mark.parametrize(
    "host",
    [
        "300.1.1.1",
        "no such host",
        "192.0.2.1",
        "a..b",
        ".a",
        "x" * 64,
        "127.0.0.1:50051",
        "::1::2",
        "",
    ],
)
def test_a_host_that_is_not_an_address_of_this_machine_is_named(
    write_tokens: WriteTokens, host: str
) -> None:
    """A typing error here must not cause listening everywhere, or an error about the port."""
    line = refusal("--data", write_tokens(range(100)), "--host", host)
    assert line.startswith("--host: ")
    assert repr(host)[1:-1] in line


# What starts.


def test_one_line_on_stdout_has_the_address(write_tokens: WriteTokens) -> None:
    """Scripts wait for this line, and read the port from it if they passed 0."""
    data = write_tokens(range(100))
    command = [sys.executable, "-m", "server", "--data", data, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        process.terminate()
        rest, log = process.communicate(timeout=10)
    everywhere = "[::]" if HAS_IPV6 else "0.0.0.0"
    assert line == f"tokenfeed {__version__} listening on {everywhere}:{port}\n"
    assert port > 0
    assert rest == ""
    assert process.returncode == 0
    assert [entry for entry in log.splitlines() if not LOG_LINE.match(entry)] == []


def test_both_ipv4_and_ipv6_clients_connect_by_default(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Which of the two a name resolves to is not the trainer's choice."""
    server = serve("--data", write_tokens(range(100)))
    port = server.address.rpartition(":")[2]
    for host in ("127.0.0.1", *(["[::1]"] if HAS_IPV6 else [])):
        np.testing.assert_array_equal(ask(f"{host}:{port}", in_order(9, 1)), [range(10)])


def test_a_host_limits_who_can_connect(serve: Serve, write_tokens: WriteTokens) -> None:
    """Without TLS, loopback or a private interface is the only protection there is."""
    server = serve("--data", write_tokens(range(100)), "--host", "127.0.0.1")
    port = int(server.address.rpartition(":")[2])
    np.testing.assert_array_equal(ask(f"127.0.0.1:{port}", in_order(9, 1)), [range(10)])
    with socket.socket(socket.AF_INET) as stranger, pytest.raises(ConnectionRefusedError):
        stranger.connect(("127.0.0.2", port))
    assert "plaintext" not in server.stderr


def test_listening_in_plaintext_is_warned_of_in_the_log(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Anyone who can reach the port can read the corpus: the operator should be warned."""
    server = serve("--data", write_tokens(range(100)))
    (warning,) = [line for line in server.stderr.splitlines() if "WARNING" in line]
    assert "plaintext" in warning


def test_the_log_tells_what_was_opened(serve: Serve, write_tokens: WriteTokens) -> None:
    """The fingerprint in the log is what two replicas are compared by when something is wrong."""
    server = serve("--data", write_tokens(range(100)))
    (described,) = describe(server)
    (line,) = [line for line in server.stderr.splitlines() if "opened" in line]
    assert "format=raw files=1 tokens=100 dtype=uint16 served=uint16" in line
    assert described.fingerprint.hex() in line


def test_the_log_tells_what_was_assumed(serve: Serve, write_tokens: WriteTokens) -> None:
    """A file without a header does not record its type, so the user may have to override it."""
    path = write_tokens(range(100))
    server = serve("--data", path)
    (line,) = [line for line in server.stderr.splitlines() if "assumed" in line]
    assert "dataset=train format=raw dtype=uint16 files=1: " in line
    assert "the options format and dtype override it" in line
    assert "assumed" not in serve("--data", path, "--dtype", "uint16").stderr


def test_format_and_dtype_can_be_set_for_one_dataset(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """One server, and corpora of several origins."""
    one, two = write_tokens(range(100), "one.bin"), write_tokens(range(90), "two.bin", "<u4")
    three = write_tokens([1, 2], "three.npy", "<i8")
    server = serve(
        *("--data", one, "--data", two, "--data", three),
        *("--dtype", "uint32", "--dtype", "one=uint16", "--dtype", "three=int64"),
        *("--format", "three=raw"),
    )
    found = {data.name: (data.dtype, data.token_count) for data in describe(server)}
    assert found == {"one": ("uint16", 100), "two": ("uint32", 90), "three": ("int64", 2)}

    line = refusal("--data", one, "--dtype", "other=uint16")
    assert line == "--dtype: no dataset is named 'other', only one"


def test_files_of_two_formats_or_types_are_not_a_dataset(write_tokens: WriteTokens) -> None:
    """A format, or a type, that differs in the middle of a corpus is a mistake."""
    one = write_tokens(range(100), "one.bin")
    two = one.with_name("two.npy")
    np.save(two, np.arange(100, dtype="<u2"))
    three = one.with_name("three.npy")
    np.save(three, np.arange(100, dtype="<i4"))

    assert refusal("--data", one, two) == (
        f"{two}: is npy (uint16), but {one} is raw (uint16); all files of a dataset need the "
        "same format and type"
    )
    assert "is npy (int32), but" in refusal("--data", two, three)


def test_each_data_is_a_dataset_by_its_own_name(serve: Serve, write_tokens: WriteTokens) -> None:
    """Training and validation from one server, each requested by name."""
    train, val = write_tokens(range(100), "train.bin"), write_tokens(range(200, 300), "v1.bin")
    server = serve("--data", train, "--data", f"val={val}")
    assert [data.name for data in describe(server)] == ["train", "val"]
    np.testing.assert_array_equal(ask(server.address, in_order(9, 1, "train")), [range(10)])
    np.testing.assert_array_equal(ask(server.address, in_order(9, 1, "val")), [range(200, 210)])


def test_several_paths_are_shards_in_the_order_given(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Their order is part of the corpus, and the command line chooses it."""
    paths = [write_tokens([number] * 5, f"{number}.bin") for number in (3, 1, 2)]
    server = serve("--data", f"train={paths[0]}", *paths[1:])
    (described,) = describe(server)
    assert (described.name, described.file_count) == ("train", 3)
    np.testing.assert_array_equal(ask(server.address, in_order(4, 3))[:, 0], [3, 1, 2])


SHARDS_IN_BYTE_ORDER = ("B.bin", "a.bin", "a10.bin", "a2.bin", "b.bin", "é.bin")


@pytest.mark.parametrize("kind", ["folder", "glob", "folder with a slash"])
def test_shards_of_a_folder_come_in_byte_order_of_their_names(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, kind: str
) -> None:
    """Not in the locale's order, nor the disk's: each replica has to get the same corpus."""
    for number in (4, 0, 5, 2, 1, 3):
        write_tokens([number] * 5, f"corpus/{SHARDS_IN_BYTE_ORDER[number]}")
    (tmp_path / "corpus" / "README.txt").write_text("Ten bytes.")
    folder = tmp_path / "corpus"
    data = {
        "folder": f"{folder}",
        "glob": f"corpus={folder}/*.bin",
        "folder with a slash": f"{folder}/",
    }
    server = serve("--data", data[kind])
    (described,) = describe(server)
    assert (described.name, described.file_count) == ("corpus", 6)
    np.testing.assert_array_equal(ask(server.address, in_order(4, 6))[:, 0], range(6))


def test_a_path_with_an_equals_sign_is_a_path_where_it_looks_like_one(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders like date=2026-01-01 have one; only a plain word before it is a name."""
    write_tokens(range(100), "a=b.bin")
    write_tokens(range(100), "day=1/train.bin")
    relative = f"./{os.path.relpath(tmp_path, ROOT)}"
    for data, name in (
        (f"tokens={relative}/a=b.bin", "tokens"),
        (f"{relative}/day=1/train.bin", "train"),
        (f"{tmp_path}/day=1/*.bin", "train"),
    ):
        (described,) = describe(serve("--data", data))
        assert (described.name, described.token_count) == (name, 100)


def test_a_file_with_an_equals_sign_needs_no_name(serve: Serve, write_tokens: WriteTokens) -> None:
    """On the command line, ./a=b.bin is a path and not NAME=PATH."""
    path = write_tokens(range(100), "a=b.bin")
    server = serve("--data", f"./{os.path.relpath(path, ROOT)}")
    np.testing.assert_array_equal(ask(server.address, in_order(9, 1)), [range(10)])


def test_a_file_whose_name_looks_like_a_glob_is_a_file(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """What exists under exactly that name is what is meant."""
    write_tokens(range(100, 200), "1.bin")
    path = write_tokens(range(100), "[1].bin")
    server = serve("--data", f"train={path}")
    np.testing.assert_array_equal(ask(server.address, in_order(9, 1)), [range(10)])


def test_a_server_has_as_many_descriptors_as_it_may(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Each connection takes one, and most systems begin with 1024."""
    shell = 'ulimit -Sn 256; ulimit -Hn 4000; exec "$0" "$@"'
    server = serve("--data", write_tokens(range(100)), wrapper=("bash", "-c", shell))
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()

    assert re.search(r"Max open files\s+4000\s+4000", limits)
    assert "descriptor limit raised from=256 to=4000" in server.stderr


def test_a_socket_whose_path_is_not_text_is_refused(
    tmp_path: Path, write_tokens: WriteTokens
) -> None:
    """gRPC takes addresses as UTF-8."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.sock")
    line = refusal("--data", write_tokens(range(100)), "--unix", path)
    assert line.startswith("--unix: ")
    assert line.endswith("is not valid UTF-8")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a" * 108, "has 108 bytes; at most 107"),
        ("/a%20b", "contains %"),
        ("/a?b#c", "contains # and ?"),
        ("/a,b", "contains ,"),
    ],
)
def test_a_path_that_is_no_address_of_a_socket_is_refused(
    write_tokens: WriteTokens, name: str, problem: str
) -> None:
    """gRPC says nothing of the limit, and reads these signs in its own way."""
    line = refusal("--data", write_tokens(range(100)), "--unix", name)
    assert line.startswith(f"--unix: {name} {problem}")


@pytest.mark.parametrize(
    "option",
    ["--token-file", "--status-token-file", "--tls-cert", "--tls-key", "--tls-client-ca", "--unix"],
)
def test_an_option_for_security_that_is_empty_is_refused(
    write_tokens: WriteTokens, option: str
) -> None:
    """A variable that is not set would switch off tokens, or TLS."""
    line = refusal("--data", write_tokens(range(100)), option, "")
    assert line == f"{option}: is empty; omit it, or pass a path"


@pytest.mark.parametrize("option", ["--text-column", "--append-token"])
def test_an_option_for_text_needs_a_tokenizer(write_tokens: WriteTokens, option: str) -> None:
    """Without text it would do nothing."""
    line = refusal("--data", write_tokens(range(100)), option, "x")
    assert line == f"{option}: needs --tokenizer, for --data that is text"


def test_a_size_of_a_cache_that_nothing_uses_is_said(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """As the cache itself."""
    server = serve("--data", write_tokens(range(100)), "--object-cache-bytes", 1 << 30)
    assert "--object-cache-bytes is not used: no dataset is in an object store" in server.stderr


def test_the_server_process_has_no_torch_in_it(serve: Serve, write_tokens: WriteTokens) -> None:
    """It runs on storage machines without a GPU stack, and starts in half a second."""
    server = serve("--data", write_tokens(range(100)))
    ask(server.address, in_order(9, 1))
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "/torch/" not in maps
    assert "numpy" in maps


# How it stops.


@contextmanager
def open_streams(server: Server, count: int) -> Iterator[None]:
    """Hold streams without end open: of every two, one is being read and one is left lying."""
    request = batches(batch_size=32, context_length=1024).SerializeToString()
    with grpc.insecure_channel(server.address) as channel:
        streams = [
            channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")(request, timeout=30)
            for _ in range(count)
        ]
        for index, stream in enumerate(streams):
            for _ in range(20 if index % 2 else 1):
                next(stream)
        yield


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_server_within_two_seconds_with_streams_open(
    serve: Serve, write_tokens: WriteTokens, number: signal.Signals
) -> None:
    """A rolling upgrade waits for this; clients request the missing rows elsewhere."""
    path = write_tokens(np.arange(20_000))

    def stop() -> float:
        server = serve("--data", path)
        with open_streams(server, 8):
            sent = time.monotonic()
            assert server.stop(number) == 0
            seconds = time.monotonic() - sent
        assert "Traceback" not in server.stderr
        return seconds

    seconds = least_seconds(stop, STOP_SECONDS)
    print(f"\n{number.name}: {seconds:.2f} s")
    assert seconds < STOP_SECONDS


def test_a_signal_while_tokens_are_checked_ends_the_server(tmp_path: Path) -> None:
    """Checking a large corpus takes minutes: time to notice that a flag is wrong."""
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(1 << 37)  # a hole: it takes no room on the disk, but a minute to read
    command = [
        sys.executable, "-m", "server", "--port", "0", "--data", path, "--vocab-size", "10",
        "--check-all-tokens", "--log-level", "debug",
    ]  # fmt: skip
    # Or importing numpy starts a thread for each core.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
        try:
            wait_for_threads(process.pid, 8)
            process.terminate()
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pytest.fail("it went on checking for 5 s after SIGTERM")
        finally:
            process.kill()
            process.wait()
            path.unlink()
        assert "Traceback" not in (tmp_path / "log").read_text()


def wait_for_threads(process: int, count: int) -> None:
    """Wait until a process has this many threads: here, until it reads tokens."""
    end = time.monotonic() + START_SECONDS
    while len(os.listdir(f"/proc/{process}/task")) < count:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_port_of_a_server_that_has_just_stopped_can_be_had_again(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A restart must not wait a minute for old connections to time out."""
    path, port = write_tokens(np.arange(20_000)), free_port()
    server = serve("--data", path, port=port)
    with open_streams(server, 2):
        server.stop()
        again = serve("--data", path, port=port)
    np.testing.assert_array_equal(ask(again.address, in_order(9, 1)), [range(10)])
