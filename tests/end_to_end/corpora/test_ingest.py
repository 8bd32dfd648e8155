"""From text to batches: ingested, served, decoded, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import ROOT, Serve
from tests.end_to_end.training.nanochat import NanochatLoader
from tests.server.ingest.chats import CHATML, without_blocks
from tests.server.ingest.corpus import (
    END,
    documents,
    make_tokenizer,
    stored,
    write_jsonl,
    write_parquet,
)
from tests.server.ingest.running import ingested
from tests.support import reference
from tests.support.commands import run
from tests.support.offline import offline_rows, received_rows
from tokenfeed.client.transport.channel import describe
from tokenfeed.errors import InvalidCorpus, StreamMismatch
from tokenfeed.server.datasets.sources import parse_text
from tokenfeed.server.datasets.sources.text_cache import TextCache
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.tools import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "pages.parquet"
    return write_parquet(path, {"text": documents(2000)}, row_group_size=150)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, pages: Path, tokenizer: Path) -> Path:
    """Two splits, in several shards."""
    out = tmp_path_factory.mktemp("corpus") / "out"
    ingested(
        pages, "--out", out, "--tokenizer", tokenizer, "--append-token", END,
        "--val-fraction", "0.2", "--shard-tokens", "10000",
    )  # fmt: skip
    return out


def paragraphs(text: str) -> list[str]:
    parts = text.split("\n\n")
    return [part for part in (*(part + "\n\n" for part in parts[:-1]), parts[-1]) if part]


@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst", "txt"])
def test_tiny_shakespeare_comes_back_as_it_was(
    serve: Serve, shared_data: Path, tmp_path: Path, kind: str
) -> None:
    """For each kind of file; through GPT-2's tokenizer and a server."""
    from tokenizers import Tokenizer

    text = (shared_data / "tinyshakespeare.txt").read_text()
    path = tmp_path / f"shakespeare.{kind}"
    if kind == "parquet":
        write_parquet(path, {"text": paragraphs(text)})
    elif kind == "txt":
        path.write_text(text)
    else:
        write_jsonl(path, ({"text": part} for part in paragraphs(text)))
    tokenizer = shared_data / "gpt2-tokenizer.json"
    ingested(path, "--out", tmp_path / "out", "--tokenizer", tokenizer)

    tokens = np.array(stored(tmp_path / "out" / "train"))
    assert Tokenizer.from_file(str(tokenizer)).decode(tokens.tolist()) == text
    server = serve("--data", tmp_path / "out")
    with RemoteBatches(server.address, 32, 256, order="sequential") as feed:
        rows = received_rows(feed.epoch(0, tail="drop"))
    served = rows[:, :-1].ravel()
    assert served.tolist() == tokens[: served.size].tolist()
    assert served.size > 0.95 * tokens.size


def test_its_halves_have_the_counts_that_nanogpt_publishes(
    shared_data: Path, tmp_path: Path
) -> None:
    """The first 90 % of the characters, and the last 10 %."""
    text = (shared_data / "tinyshakespeare.txt").read_text()
    border = int(len(text) * 0.9)
    for name, half, count in (("a", text[:border], 301_966), ("b", text[border:], 36_059)):
        path = tmp_path / f"{name}.txt"
        path.write_text(half)
        ingested(
            path, "--out", tmp_path / name, "--tokenizer", shared_data / "gpt2-tokenizer.json",
            "--val-fraction", "0",
        )  # fmt: skip
        assert len(stored(tmp_path / name / "train")) == count


def datasets(serve: Serve, *words: str | Path) -> dict[str, tuple[int, bytes]]:
    """Tokens and digest of what a server serves, by name."""
    found = describe(serve("--data", *words).address).datasets
    return {one.name: (one.token_count, one.digest) for one in found}


def test_a_folder_serves_both_splits_and_each_alone(serve: Serve, corpus: Path) -> None:
    """As train and val, or with a prefix."""
    made = json.loads((corpus / "manifest.json").read_text())["splits"]
    facts = {name: (made[name]["tokens"], bytes.fromhex(made[name]["digest"])) for name in made}

    assert datasets(serve, corpus) == facts
    assert datasets(serve, f"web={corpus}") == {f"web-{name}": facts[name] for name in facts}
    assert datasets(serve, corpus / "val") == {"val": facts["val"]}


def test_the_only_dataset_has_the_name_alone(serve: Serve, pages: Path, tmp_path: Path) -> None:
    ingested(pages, "--out", tmp_path / "out", "--tokenizer", "bytes")

    assert list(datasets(serve, tmp_path / "out")) == ["train"]
    assert list(datasets(serve, f"web={tmp_path / 'out'}")) == ["web"]


def failed(*words: str | Path, cwd: Path = ROOT) -> str:
    """The error of a server that does not start."""
    command = [sys.executable, "-m", "server", *map(str, words), "--port", "0"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr


def test_a_manifest_is_compared_with_the_shards(
    pages: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """One token changed, one shard of another corpus: the content is not that of the ingest."""
    out = tmp_path / "out"
    ingested(pages, "--out", out, "--tokenizer", tokenizer, "--shard-tokens", "20000")
    shard = out / "train" / "000001.ds"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)

    assert "does not match its manifest" in failed("--data", out)
    (out / "manifest.json").write_text('{"job": {}, "version": 2}')
    assert "is not a manifest of version 1" in failed("--data", out)
    (out / "manifest.json").write_text("{")
    assert "is damaged" in failed("--data", out)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """An ingest of questions and answers, in two splits."""
    rows = [{"q": f"{n}, why? ", "a": f"since {n}"} for n in range(300)]
    ingested(
        write_jsonl(tmp_path / "pairs.jsonl", rows), "--out", tmp_path / "out",
        "--tokenizer", "bytes", "--append-token", END, "--val-fraction", "0.2",
        "--prompt-column", "q", "--response-column", "a", "--shard-tokens", "2000",
    )  # fmt: skip
    return tmp_path / "out"


@pytest.mark.parametrize("words", [("",), ("train",), ("train/000000.ds",)])
def test_pairs_are_served_with_their_masks(
    serve: Serve, pairs: Path, words: tuple[str, ...]
) -> None:
    """Without an option: a model that learns prompts like responses seems fine for long."""
    server = serve("--data", *(pairs / word for word in words))

    described = describe(server.address).datasets

    assert described
    for dataset in described:
        shards = sorted((pairs / ("val" if dataset.name == "val" else "train")).glob("*.ds.loss"))
        if "000000" in words[0]:
            shards = shards[:1]
        (plane,) = [plane for plane in dataset.planes if plane.kind == LOSS_MASK]
        entries = [shard.read_bytes() for shard in shards]
        assert plane.fingerprint == reference.plane_fingerprint(LOSS_MASK, entries)


def test_chats_are_served_with_what_the_assistant_writes_as_targets(
    serve: Serve, tmp_path: Path
) -> None:
    """From messages to the loss of a trainer: each answer with its end, and nothing else."""
    answers = [f"it is {n}, naïve" for n in range(200)]
    rows = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]}
        for answer in answers
    ]
    (tmp_path / "t.jinja").write_text(without_blocks(CHATML))
    ingested(
        write_jsonl(tmp_path / "chats.jsonl", rows), "--out", tmp_path / "out",
        "--tokenizer", "bytes", "--messages-column", "messages",
        "--chat-template", tmp_path / "t.jinja",
    )  # fmt: skip

    address = serve("--data", tmp_path / "out").address
    with RemoteBatches(address, 4, 64, order="sequential") as feed:
        targets = b"".join(bytes(y[y != -100].tolist()) for _, y in feed.epoch(0, tail="pad"))

    expected = "".join(f"{answer}<|im_end|>\n" for answer in answers).encode()
    # The last window ends less than 64 tokens before the end.
    assert expected.startswith(targets)
    assert len(targets) > len(expected) - 64


def test_a_lost_mask_of_one_of_several_shards_is_found(pairs: Path) -> None:
    """Its prompts would be learned."""
    first, last = sorted((pairs / "train").glob("*.ds"))[:: len(list(pairs.glob("train/*.ds"))) - 1]
    (pairs / "train" / f"{first.name}.loss").unlink()

    assert f"{first}: has no loss mask, but another file" in failed("--data", first, last)


def test_a_mask_that_was_changed_on_its_way_is_found_by_verify(
    pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the right size and only valid bytes, so that a server cannot know."""
    assert verify.main([str(pairs / "train")]) == 0
    mask = pairs / "train" / "000001.ds.loss"
    content = bytearray(mask.read_bytes())
    content[100] ^= 1
    mask.write_bytes(content)

    assert verify.main([str(pairs / "val")]) == 0
    assert verify.main([str(pairs / "train")]) == 1
    assert f"{mask}: is not the loss mask that its manifest lists" in capsys.readouterr().err


def test_a_mask_beside_what_a_link_leads_to_counts_too(
    serve: Serve, pairs: Path, tmp_path: Path
) -> None:
    """A mix is often a folder of links to shards."""
    link = tmp_path / "mix" / "first.ds"
    link.parent.mkdir()
    link.symlink_to(pairs / "train" / "000000.ds")

    server = serve("--data", link)

    assert "loss mask opened dataset=first files=1" in server.stderr
    assert [plane.kind for plane in describe(server.address).datasets[0].planes] == [LOSS_MASK]


def test_a_dataset_without_its_listed_masks_is_damaged(pairs: Path) -> None:
    """Otherwise a server would not know of them, and models would silently train on prompts."""
    for mask in pairs.glob("*/*.ds.loss"):
        mask.unlink()

    said = failed("--data", pairs)

    assert said.endswith(
        f"error: {pairs}/train/000000.ds.loss: is listed in its manifest, but cannot be read: "
        "No such file or directory; restore this loss mask, or remove the folder and ingest "
        "again\n"
    )


def test_a_truncated_listed_mask_is_damaged(pairs: Path) -> None:
    """An incomplete copy of a folder is not that folder."""
    os.truncate(pairs / "val" / "000000.ds.loss", 10)

    said = failed("--data", pairs)

    assert f"{pairs}/val/000000.ds.loss: is listed in its manifest, but has 10 bytes" in said


def test_a_folder_with_masks_is_inspected_and_verified(pairs: Path) -> None:
    """Inspect says where the masks are."""
    train = str(pairs / "train")

    said = run("-m", "tokenfeed.tools.inspect", train)

    shards = sorted(pairs.glob("train/*.ds.loss"))
    assert f"  loss masks: of {len(shards)} file(s), the first is {shards[0]}\n" in said
    assert "digest:" in run("-m", "tokenfeed.tools.verify", train)


def test_a_manifest_of_another_tool_does_not_matter(serve: Serve, tmp_path: Path) -> None:
    """Many tools leave a file of that name beside their shards."""
    np.arange(500, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "manifest.json").write_text("{}")

    assert [tokens for tokens, _ in datasets(serve, f"web={tmp_path}").values()] == [500]


def test_text_is_ingested_into_its_own_folder_and_served_from_there(
    serve: Serve, tmp_path: Path
) -> None:
    """By the command that the ingest prints."""
    write_jsonl(tmp_path / "a.jsonl", [{"text": "abc" * 50}])
    said = ingested(tmp_path, "--out", tmp_path, "--tokenizer", "bytes")

    assert f"serve it: tokenfeed serve --data {tmp_path}\n" in said
    assert list(datasets(serve, tmp_path)) == ["train"]


def test_an_unfinished_ingest_is_not_served(pages: Path, tmp_path: Path) -> None:
    """Half a corpus is another corpus."""
    (tmp_path / "out" / ".ingest").mkdir(parents=True)

    assert "contains an unfinished ingest" in failed("--data", tmp_path / "out")


def test_a_state_is_refused_on_a_corpus_made_with_another_tokenizer(
    serve: Serve, corpus: Path, pages: Path, tmp_path: Path
) -> None:
    """The same text, other tokens: a run that resumed with them would be spoiled."""
    other = make_tokenizer(tmp_path / "other.json")
    content = json.loads(other.read_text())
    content["pre_tokenizer"]["add_prefix_space"] = True
    other.write_text(json.dumps(content))
    ingested(
        pages, "--out", tmp_path / "out", "--tokenizer", other, "--append-token", END,
        "--val-fraction", "0.2", "--shard-tokens", "10000",
    )  # fmt: skip
    with RemoteBatches(serve("--data", corpus).address, 4, 16, dataset="train") as feed:
        next(feed)
        state = feed.state_dict()

    address = serve("--data", tmp_path / "out").address
    with RemoteBatches(address, 4, 16, dataset="train") as feed:
        with pytest.raises(StreamMismatch, match="fingerprint"):
            feed.load_state_dict(state)


def test_text_is_served_by_one_command_and_ingested_once(
    serve: Serve, pages: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """The second start finds what the first made; changed text or another tokenizer is new."""
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(pages.read_bytes())
    words = ("--data", tmp_path / "*.parquet", "--cache-dir", tmp_path / "cache")

    first = serve(*words, "--tokenizer", tokenizer)
    again = serve(*words, "--tokenizer", tokenizer)

    assert "ingesting dataset=copy files=1" in first.stderr
    assert "ingesting" not in again.stderr
    assert describe(first.address).datasets == describe(again.address).datasets
    assert [one.name for one in describe(first.address).datasets] == ["copy"]
    serve(*words, "--tokenizer", "bytes")
    assert len(os.listdir(tmp_path / "cache")) == 2
    os.utime(copy)
    serve(*words, "--tokenizer", tokenizer)
    assert len(os.listdir(tmp_path / "cache")) == 3


def test_a_file_that_appears_while_text_is_ingested_is_not_part_of_the_cache(
    tmp_path: Path,
) -> None:
    """Otherwise a start without it would find the cache with it, and two machines would differ."""
    write_jsonl(tmp_path / "a.jsonl", [{"text": "abc"}])
    text = parse_text([str(tmp_path / "*.jsonl")])
    write_jsonl(tmp_path / "b.jsonl", [{"text": "def"}])
    cache = TextCache("bytes", "text", None, str(tmp_path / "cache"))

    with pytest.raises(InvalidCorpus, match="changed while it was ingested, or files were added"):
        cache.tokenized(text, [str(tmp_path / "*.jsonl")])

    assert os.listdir(tmp_path / "cache") == []
    text = parse_text([str(tmp_path / "*.jsonl")])
    (path,) = cache.tokenized(text, [str(tmp_path / "*.jsonl")]).paths
    assert np.fromfile(path, "<u2").tolist() == list(b"abcdef")


def test_text_without_a_tokenizer_is_named(pages: Path, tmp_path: Path) -> None:
    said = failed("--data", pages)

    assert f"--data: {pages} is text; pass --tokenizer, or ingest it first" in said
    broken = tmp_path / "x.parquet"
    broken.write_bytes(b"PAR1")
    said = failed("--data", broken, "--tokenizer", "bytes", "--cache-dir", tmp_path)
    assert f"error: {broken}: unreadable: " in said
    assert f"error: {broken}: could not be ingested: see the error above" in said.splitlines()[-1]
    said = failed("--data", pages, "--tokenizer", "bytes", "--append-token=-x")
    assert "--append-token: '-x' is not a token of bytes" in said
    tokens = tmp_path / "x.bin"
    tokens.write_bytes(bytes(100))
    assert "--tokenizer: is for --data that is text" in failed("--data", tokens, "--tokenizer", "b")


def test_what_an_ingest_prints_is_part_of_a_log_in_json(
    serve: Serve, pages: Path, tmp_path: Path
) -> None:
    """A collector takes the whole of stderr, and an error of the ingest is one of the server."""
    words = ("--tokenizer", "bytes", "--cache-dir", str(tmp_path), "--log-format", "json")
    server = serve("--data", pages, *words)
    broken = tmp_path / "x.parquet"
    broken.write_bytes(b"PAR1")

    said = [json.loads(line) for line in server.stderr.splitlines()]
    failure = [json.loads(line) for line in failed("--data", broken, *words).splitlines()]

    printed = [entry["line"] for entry in said if entry["event"] == "ingest printed"]
    assert printed[-1].startswith("serve it: tokenfeed serve --data ")
    errors = [entry for entry in failure if entry["level"] == "ERROR"]
    assert [entry["event"] for entry in errors] == ["ingest printed", "start failed"]
    assert errors[0]["line"].startswith(f"error: {broken}: unreadable: ")
    assert errors[1]["what"] == str(broken)


@pytest.mark.alone
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_server_that_is_stopped_while_it_ingests_leaves_no_process(
    tmp_path: Path, log_format: str
) -> None:
    """Within 2 seconds, like any other; the next start resumes."""
    path = write_jsonl(tmp_path / "x.jsonl", ({"text": "word " * 200_000} for _ in range(400)))
    command = [sys.executable, "-m", "server", "--data", str(path), "--tokenizer", "bytes"]
    command += ["--cache-dir", str(tmp_path / "cache"), "--port", "0"]
    command += ["--log-format", log_format]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("cache/*/.ingest/train")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begun = time.monotonic()
    server.send_signal(signal.SIGTERM)

    assert server.wait(10) == 0
    assert time.monotonic() - begun < 2
    while working_on(str(path)):
        assert time.monotonic() - begun < 5
        time.sleep(0.01)


def working_on(word: str) -> list[str]:
    """Processes that have it on their command line."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if word in line]


T = 64
DOCUMENTS = 12_000


def windows(rows: np.ndarray) -> Counter[bytes]:
    return Counter(row.tobytes() for row in rows)


def test_a_resumed_epoch_has_each_window_once_and_nanochat_s_loader_loses_documents(
    serve: Serve, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same parquet, two ranks, stopped midway: our windows against documents of the peer."""
    texts = documents(DOCUMENTS, words_max=12)
    pages = write_parquet(tmp_path / "pages.parquet", {"text": texts}, row_group_size=500)
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer)).encode_batch_fast

    def peers(states: Sequence[dict[str, int] | None]) -> list[NanochatLoader]:
        return [
            NanochatLoader(
                [pages],
                lambda texts: [found.ids for found in encode(texts, add_special_tokens=False)],
                row_tokens=T + 1,
                rank=rank,
                world_size=2,
                state=state,
            )
            for rank, state in enumerate(states)
        ]

    def run(loaders: list[NanochatLoader], rows: int) -> list[NanochatLoader]:
        for peer in loaders:
            for _, _ in zip(range(rows), peer.rows(), strict=False):
                pass
        return loaders

    def lost(loaders: Sequence[NanochatLoader]) -> tuple[int, int]:
        """Documents that are delivered by no rank, and those that are delivered twice."""
        times = Counter(number for peer in loaders for number in peer.handed_out)
        return DOCUMENTS - len(times), sum(count > 1 for count in times.values())

    assert lost(run(peers([None, None]), 10**9)) == (0, 0), "undisturbed it delivers all"
    stopped = run(peers([None, None]), 600)
    resumed = run(peers([peer.state for peer in stopped]), 10**9)
    assert all(len(peer.handed_out) > 1000 for peer in (*stopped, *resumed))
    skipped, repeated = lost([*stopped, *resumed])

    ingested(pages, "--out", tmp_path / "out", "--tokenizer", tokenizer, "--append-token", END)
    address = serve("--data", tmp_path / "out").address
    rows = []
    for rank in range(2):
        place = {"rank": rank, "world_size": 2, "order": "sequential"}
        with RemoteBatches(address, 4, T, **place) as feed:
            epoch = iter(feed.epoch(0, tail="pad"))
            rows.append(received_rows([next(epoch) for _ in range(150)]))
            state = feed.state_dict()
        with RemoteBatches(address, 4, T, **place) as feed:
            feed.load_state_dict(state)
            rows.append(received_rows(feed.epoch(0, tail="pad")))
    paths = sorted((tmp_path / "out" / "train").glob("*.ds"))
    count = (sum(path.stat().st_size for path in paths) // 2 - 1) // T
    expected = windows(offline_rows(paths, "sequential-1", 0, T, range(count)))
    ours = windows(np.concatenate([part[part[:, -1] != -100] for part in rows]))
    missing, twice = expected - ours, ours - expected
    with capsys.disabled():
        print(
            f"\nof {DOCUMENTS:,} documents nanochat's loader skips {skipped:,} and repeats "
            f"{repeated:,}; of {count:,} windows ours skips {missing.total()} and repeats "
            f"{twice.total()}"
        )
    assert skipped > 100
    assert (missing.total(), twice.total()) == (0, 0)
