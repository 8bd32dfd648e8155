"""python -m tests.server.ingest.kills: kill -9 at seeded moments, and the result is the same.

An ingest is run by a process that counts its calls of the file system and kills itself at the N-th
call: in the middle of a write, before a sync, before and after a rename. Then it is run again until
it is done, and compared byte by byte with an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.server.ingest.chats import CHATML, without_blocks
from tests.server.ingest.corpus import (
    END,
    documents,
    make_tokenizer,
    tree,
    write_jsonl,
    write_parquet,
)
from tests.server.ingest.running import ingest
from tests.support.dying import die_at

CALLS = ("write", "fsync", "replace", "rename")


def run_and_die(call: str, number: int, words: list[str]) -> int:
    """Ingest in this process, which dies at the number-th such call.  Returns: if it does not."""
    from tokenfeed.server.ingest import run
    from tokenfeed.server.ingest.__main__ import main

    run._CHECKPOINT_SECONDS = 0.0
    counts = die_at(call, number, CALLS)
    code = main(words)
    print("counts", *counts.values(), file=sys.stderr)
    return code


def moments(counts: dict[str, int], number: int, seed: int) -> list[tuple[str, int]]:
    """Return `number` moments, of each call in turn: first its last one while work is in flight."""
    choose = random.Random(seed)
    chosen: list[tuple[str, int]] = []
    for index in range(number):
        call = CALLS[index % len(CALLS)]
        # The last two syncs come after the last rename: nothing is in flight any more.
        last = counts[call] - 2 * (call == "fsync")
        chosen.append((call, last if index < len(CALLS) else choose.randint(1, last)))
    return chosen


def jobs(folder: Path, engine: str) -> list[list[str]]:
    """Shuffled documents of parquet and zstd in two splits, with ids; files of text in several
    chunks; pairs with their mask and ids; chats.

    engine: what encodes all but the chats.
    """
    tokenizer = make_tokenizer(folder / "tokenizer.json")
    texts = documents(4000)
    pages = [
        write_parquet(folder / "a.parquet", {"text": texts[:2000], "id": range(2000)}),
        write_jsonl(
            folder / "b.jsonl.zst",
            ({"text": text, "id": f"№ {n}"} for n, text in enumerate(texts[2000:])),
        ),
    ]
    books = []
    for number in range(2):
        books.append(folder / f"{number}.txt")
        books[-1].write_text("\n".join(documents(30_000, seed=number)))
    columns = {"q": texts[:2000], "a": texts[2000:], "id": range(2000)}
    pairs = write_parquet(folder / "pairs.parquet", columns)
    chats = write_jsonl(
        folder / "chats.jsonl",
        (
            {"chat": [{"role": "user", "content": q}, {"role": "assistant", "content": a}], "id": q}
            for q, a in zip(map(repr, texts[:2000]), texts[2000:], strict=True)
        ),
    )
    template = folder / "t.jinja"
    template.write_text(without_blocks(CHATML))
    given = ["--tokenizer", str(tokenizer), "--append-token", END, "--workers", "1"]
    shuffled = ["--shuffle-buffer", "300", "--val-fraction", "0.2"]
    with_ids = ["--id-column", "id", "--shard-tokens", "9000"]
    of_pairs = ["--prompt-column", "q", "--response-column", "a"]
    of_chats = ["--messages-column", "chat", "--chat-template", str(template)]
    by = ["--tokenizer-engine", engine]
    return [
        [*map(str, pages), *given, *by, *shuffled, *with_ids],
        [*map(str, books), *given, *by, "--shard-tokens", "400000"],
        [str(pairs), *given, *by, *of_pairs, *with_ids],
        [str(chats), *given, *of_chats, *with_ids, "--shuffle-buffer", "70"],
    ]


def check(folder: Path, number: int, seed: int, engine: str = "tokenizers") -> None:
    """Kill `number` runs, of the jobs in turn.  Raises: AssertionError."""
    module = "tests.server.ingest.kills"
    out = folder / "out"
    every = jobs(folder, engine)
    if engine == "fastokens":
        # The probe writes a file of its own, once.
        probed = ingest(*every[0], "--out", folder / "probed", timeout=300)
        assert probed.returncode == 0, probed.stderr
    for job, words in enumerate(every):
        kills = len(range(job, number, len(every)))
        calm = ingest(
            "--die-at", "write", "0", *words, "--out", folder / f"calm-{job}", module=module
        )
        assert calm.returncode == 0, calm.stderr
        numbers = map(int, calm.stderr.split("counts ")[1].split())
        counts = dict(zip(CALLS, numbers, strict=True))
        expected = tree(folder / f"calm-{job}")
        for call, place in moments(counts, kills, seed + job):
            shutil.rmtree(out, ignore_errors=True)
            died = ingest("--die-at", call, str(place), *words, "--out", out, module=module)
            assert died.returncode == -signal.SIGKILL, f"{call} {place}: {died.stderr}"
            visible = sorted(os.listdir(out))
            assert ".ingest" in visible, "it was done: nothing was in flight"
            assert "manifest.json" not in visible
            for name in set(visible) & {"train", "val"}:
                whole = {path: c for path, c in expected.items() if path.startswith(name)}
                assert {f"{name}/{path}": c for path, c in tree(out / name).items()} == whole
            again = ingest(*words, "--out", out)
            assert again.returncode == 0, again.stderr
            assert tree(out) == expected, f"{call} {place}: another result"
            print(f"job {job}: killed at {call} {place} of {counts[call]}: the same bytes")


def main(argv: list[str]) -> int:
    """Run.  Returns: 0, or what the ingest returned that was to die."""
    if argv[:1] == ["--die-at"]:
        return run_and_die(argv[1], int(argv[2]), argv[3:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer-engine", default="tokenizers")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), arguments.moments, arguments.seed, arguments.tokenizer_engine)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
