"""Engines that encode: the tokens are those of tokenizers, or another engine is not used."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.server.ingest.corpus import END, documents, tree, write_jsonl, write_parquet
from tests.server.ingest.erring import Erring, install
from tests.server.ingest.running import ingest, ingested
from tokenfeed.errors import InvalidCorpus, InvalidRequest
from tokenfeed.server.ingest import run
from tokenfeed.server.ingest.job import Job
from tokenfeed.server.ingest.tokenize import encoding, engine
from tokenfeed.server.ingest.tokenize import tokenizer as tokenizer_module
from tokenfeed.server.ingest.tokenize.encoding import encode_unit
from tokenfeed.server.ingest.tokenize.engine import SMALL_BYTES, choose_engine, keep_verdict
from tokenfeed.server.ingest.tokenize.recipe import Recipe
from tokenfeed.server.ingest.tokenize.tokenizer import (
    FASTOKENS,
    FastTokenizer,
    TokenizerFile,
    installed,
    load_tokenizer,
)
from tokenfeed.server.ingest.units import Rows, SourceOffset, Strings, TextChunk, Unit


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts of other tests would decide here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_tokenizer.cache_clear()


def read(path: Path, **fields: Any) -> TokenizerFile:
    return replace(TokenizerFile.read(str(path), parses_special=False), **fields)


def known(path: Path, *, parses_special: bool = False) -> TokenizerFile:
    """A tokenizer that has passed the probe, which takes seconds."""
    file = TokenizerFile.read(str(path), parses_special=parses_special)
    file = replace(file, version=installed("tokenizers"))
    keep_verdict(file, "")
    return file


def trained(kind: str, folder: Path) -> Path:
    """A tokenizer with the normalizer and pre-tokenizer of a well-known one."""
    made = Tokenizer(models.BPE(byte_fallback=kind == "SentencePiece"))
    if kind == "SentencePiece":
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    elif kind == "GPT-2":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        pattern = engine.COMPARED[kind][1]["pretokenizers"][0]["pattern"]["Regex"]
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    if kind.startswith("Qwen"):
        made.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[END, "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    made.train_from_iterator(documents(300, seed=2), trainer)
    path = folder / f"{kind}.json"
    made.save(str(path))
    return path


def adversarial(count: int, seed: int = 0) -> list[str]:
    """Texts of signs from all of Unicode, with spaces, contractions and special tokens."""
    choose = random.Random(seed)
    words = (
        *"'s 'LL 12 345 \u017f e\u0301 \u180e \u00a0 <|user|> <|user ? \n\n \r\n".split(" "),
        END,
    )

    def sign() -> str:
        number = choose.choice(
            (
                choose.randrange(0x20, 0x7F),
                choose.randrange(0xA0, 0xD800),
                choose.randrange(0xE000, 0x32000),
            )
        )
        return chr(number)

    return [
        "".join(choose.choice((sign(), sign(), choose.choice(words), " ")) for _ in range(length))
        for length in choose.choices(range(1, 120), k=count)
    ]


@pytest.mark.parametrize("kind", engine.COMPARED)
@pytest.mark.parametrize("count", [150, pytest.param(100_000, marks=pytest.mark.proof)])
@pytest.mark.timeout(1800)
def test_both_engines_give_the_same_tokens(tmp_path: Path, kind: str, count: int) -> None:
    """Whichever encodes, the corpus is the same."""
    path = trained(kind, tmp_path)
    assert engine._not_compared(path.read_bytes()) == ""
    for parses_special in (False, True):
        fast = load_tokenizer(replace(known(path, parses_special=parses_special), engine=FASTOKENS))
        assert isinstance(fast, FastTokenizer)
        for seed in range(0, count, 10_000):
            texts = [*documents(min(count, 5000), seed), *adversarial(min(count, 5000), seed)]
            found, expected = fast.encode(texts), fast.reference.encode(texts)
            assert all(map(np.array_equal, found, expected))
            assert found[0].dtype == expected[0].dtype


def test_shards_are_the_same_by_both_engines(tokenizer: Path, tmp_path: Path) -> None:
    """Parquet, lines and plain text, in two splits."""
    known(tokenizer)
    texts = [text for text in adversarial(900) if text.strip()]
    pages = [
        write_parquet(tmp_path / "a.parquet", {"text": texts[:300]}),
        write_jsonl(tmp_path / "b.jsonl", ({"text": text} for text in texts[300:])),
        tmp_path / "c.txt",
    ]
    pages[-1].write_text("\n".join(documents(3000)))
    words = [*pages, "--tokenizer", tokenizer, "--append-token", END, "--val-fraction", "0.3"]
    words += ["--shard-tokens", "20000"]
    trees = []
    for name in ("tokenizers", "fastokens"):
        said = ingest(*words, "--out", tmp_path / name, "--tokenizer-engine", name)
        assert said.returncode == 0, said.stderr
        trees.append(tree(tmp_path / name))

    manifests = [json.loads(one.pop("manifest.json")) for one in trees]
    assert trees[0] == trees[1]
    assert [made["tokenizer"]["encoded_by"]["engine"] for made in manifests] == [
        "tokenizers",
        "fastokens 0.3.5",
    ]
    assert manifests[0]["splits"] == manifests[1]["splits"]
    assert ["compared_tokens" in made["tokenizer"] for made in manifests] == [False, True]
    assert manifests[1]["tokenizer"]["compared_tokens"] > 0
    assert not any("engine_reason" in made["tokenizer"] for made in manifests)
    assert "is encoded by fastokens: its tokens are those of tokenizers" in said.stderr


def test_little_text_chats_and_bytes_are_encoded_by_tokenizers(tokenizer: Path) -> None:
    """The engine would not pay, or cannot say where tokens are."""
    file = known(tokenizer)
    bytes_file = TokenizerFile.read("bytes", parses_special=False)

    chosen = [
        choose_engine(file, "auto", SMALL_BYTES - 1, ""),
        choose_engine(file, "auto", SMALL_BYTES, "chats"),
        choose_engine(bytes_file, "auto", SMALL_BYTES, ""),
        choose_engine(file, "tokenizers", SMALL_BYTES, ""),
    ]

    assert [one.engine for one, _ in chosen] == ["tokenizers"] * 4
    assert [reason for _, reason in chosen] == [
        "less than 16 MiB of text",
        "chats",
        "bytes are their own tokens",
        "--tokenizer-engine tokenizers",
    ]
    assert choose_engine(file, "auto", SMALL_BYTES, "")[0].engine == FASTOKENS
    with pytest.raises(InvalidRequest, match=r"fastokens cannot be used: chats; omit it, or"):
        choose_engine(file, "fastokens", SMALL_BYTES, "chats")


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another regular expression": (
        lambda facts: facts.update(
            pre_tokenizer={
                "type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated",
                "invert": False,
            }
        ),
        "none of those that were compared",
    ),
    "another normalizer": (
        lambda facts: facts.update(normalizer={"type": "NFKC"}),
        "none of those that were compared",
    ),
    "another model": (
        lambda facts: facts.update(
            model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
                   "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
        ),
        "the tokenizer is no BPE",
    ),
    "a gap before an added token": (
        lambda facts: facts["added_tokens"].append(
            {"id": 5000, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        ),
        "its added token '<x>' has the id 5000, where 600 follows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_that_was_not_compared_is_encoded_by_tokenizers(
    tokenizer: Path, tmp_path: Path, change: str
) -> None:
    """Each difference that was ever found is of such a tokenizer."""
    edit, reason = CHANGES[change]
    facts = json.loads(tokenizer.read_text())
    edit(facts)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(facts))

    chosen, why = choose_engine(read(path), "auto", SMALL_BYTES, "")

    assert chosen.engine == "tokenizers"
    assert reason in why
    of_spaces = trained("SentencePiece", tmp_path)
    assert "none of those" in choose_engine(read(of_spaces), "auto", SMALL_BYTES, "")[1]
    with pytest.raises(InvalidRequest, match="--tokenizer-engine: fastokens cannot be used"):
        choose_engine(read(path), "fastokens", SMALL_BYTES, "")


@pytest.mark.parametrize(
    ("errs", "place"),
    [
        (lambda text: "\u0149's" in text, "\u0149's\u0149"),
        (lambda text: "<|user|>" in text, "<|user|>"),
        (lambda text: text == "a/b\\c\u3000123", "a/b\\\\c\\u3000123"),
        (lambda text: len(text) == 10_000 and text.isalpha(), ""),
        pytest.param(lambda text: "\U000e01ef" in text, "\U000e01ef", marks=pytest.mark.proof),
    ],
    ids=["code point", "added token", "space between words", "long word", "last code point"],
)
@pytest.mark.timeout(600)
def test_the_probe_finds_an_engine_that_errs(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, errs: Callable[[str], bool], place: str
) -> None:
    """On one code point or added token, at one kind of space, on a long word; it is remembered."""
    install(monkeypatch, errs)

    chosen, reason = choose_engine(read(tokenizer), "auto", SMALL_BYTES, "")

    assert chosen.engine == "tokenizers"
    assert reason.startswith("it gives other tokens for ")
    assert place in reason or ascii(place)[1:-1] in reason
    monkeypatch.setattr(engine, "first_difference", lambda *_: pytest.fail("probed again"))
    assert choose_engine(read(tokenizer), "auto", SMALL_BYTES, "") == (chosen, reason)


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_an_engine_that_is_right_passes_the_whole_probe(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise none would ever be used."""
    assert choose_engine(read(tokenizer), "auto", SMALL_BYTES, "")[0].engine == FASTOKENS
    install(monkeypatch, lambda text: False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    assert choose_engine(read(tokenizer), "auto", SMALL_BYTES, "")[0].engine == FASTOKENS


def sampled_text() -> str:
    texts = (text for text in documents(20_000, seed=11) if len(text) < 2048)
    return next(text for text in texts if any(encoding._sampled(text)))


@pytest.mark.parametrize(
    ("count", "at_once"), [(2000, 500), pytest.param(10**6, 20_000, marks=pytest.mark.proof)]
)
@pytest.mark.timeout(1200)
def test_the_sample_finds_an_engine_that_errs_on_one_document(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, count: int, at_once: int
) -> None:
    """If that is one of the sample, which the same hash chooses each time."""
    wrong = sampled_text()
    install(monkeypatch, lambda text: text == wrong)
    file = replace(known(tokenizer), engine=FASTOKENS)
    recipe = Recipe(file, ("text",), None, None, 0.0)
    place = count * 7 // 10
    problems = []
    for first in range(0, count, at_once):
        texts = [f"page {number}" for number in range(first, first + at_once)]
        if first <= place < first + at_once:
            texts[place - first] = wrong
        rows = Rows((Strings.of([text.encode() for text in texts]),), first)
        part = encode_unit(Unit(SourceOffset(0, first), SourceOffset(0, 0), rows, 0), recipe)
        problems += part.problems

    assert [(problem.where, problem.is_of_engine) for problem in problems] == [
        (f"row {place:,}", True)
    ]


def test_a_run_stops_where_the_sample_differs_and_does_not_go_on_from_there(
    tokenizer: Path, tmp_path: Path
) -> None:
    """What it has written is in doubt, and the next run encodes by tokenizers."""
    known(tokenizer)
    texts = [*documents(700), f"{sampled_text()[:70]}"]
    wrong = next(text for text in texts[::-1] if any(encoding._sampled(text)))
    path = write_jsonl(tmp_path / "x.jsonl", ({"text": text} for text in texts))
    words = [path, "--tokenizer", tokenizer, "--out", tmp_path / "out"]
    first = sum(len(json.dumps({"text": text})) + 1 for text in texts[: texts.index(wrong)])

    done = ingest(
        wrong, *words, "--tokenizer-engine", "fastokens", module="tests.server.ingest.erring"
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {path}: the tokens of fastokens are not those of tokenizers, byte {first:,}; run "
        "the same command with --tokenizer-engine tokenizers; all that was encoded is removed"
    )
    assert not (tmp_path / "out" / ".ingest").exists()
    again = ingest(*words, "--tokenizer-engine", "fastokens")
    assert f"it gave other tokens for {path}, byte {first:,}" in again.stderr
    assert "701 documents" in ingested(*words)


def test_another_version_of_a_package_does_not_go_on_with_a_job(
    tokenizer: Path, tmp_path: Path
) -> None:
    """Its tokens may be others: half of the corpus would not fit the other half."""
    out, work = str(tmp_path), str(tmp_path / ".ingest")
    (tmp_path / ".ingest").mkdir()

    def job(**fields: Any) -> Job:
        return Job((), Recipe(read(tokenizer, **fields), ("text",), None, None, 0.0))

    run._begin(job(version="0.23.3"), out, work)
    run._begin(job(version="0.23.3"), out, work)

    with pytest.raises(InvalidCorpus, match=r"tokenizers 0\.23\.3 began, now it is 0\.21\.1: the"):
        run._begin(job(version="0.21.1"), out, work)
    with pytest.raises(InvalidCorpus, match="pass --tokenizer-engine tokenizers, or remove"):
        run._begin(job(version="0.23.3", engine=FASTOKENS), out, work)
    fast = tmp_path / "fast"
    (fast / ".ingest").mkdir(parents=True)
    run._begin(job(version="0.23.3", engine=FASTOKENS), str(fast), str(fast / ".ingest"))
    with pytest.raises(InvalidCorpus, match="fastokens where the extra fast-ingest is installed, "):
        run._begin(job(version="0.23.3"), str(fast), str(fast / ".ingest"))


def test_a_machine_with_another_version_of_tokenizers_is_named(tokenizer: Path) -> None:
    """A node of a Ray cluster; the others would encode by another table."""
    with pytest.raises(InvalidRequest, match=r"is installed here, and 0\.1 where the ingest began"):
        load_tokenizer(read(tokenizer, version="0.1"))


def test_a_dry_run_says_how_long_all_takes_and_writes_nothing(
    tokenizer: Path, tmp_path: Path
) -> None:
    """Before a week of it begins."""
    path = write_jsonl(tmp_path / "x.jsonl", ({"text": text} for text in documents(500)))

    said = ingested(path, "--tokenizer", tokenizer, "--out", tmp_path / "out", "--dry-run")

    first, speed, whole = said.splitlines()
    assert first.startswith("1 file(s), 0.1 MB; encoded by tokenizers: less than 16 MiB of text")
    assert " MB/s, " in speed
    assert whole.startswith("all of it: about 0:0")
    assert whole.endswith("; nothing was written")
    assert not (tmp_path / "out").exists()


def test_long_text_is_sampled_in_proportion_to_its_size(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A book is one text: by whole texts, 16 MB of books would pass without a comparison."""
    file = replace(known(tokenizer), engine=FASTOKENS)
    recipe = Recipe(file, ("text",), None, None, 0.0)
    text = " ".join(documents(30_000, seed=5))
    chunk = TextChunk("book.txt", text, is_first=True, is_last=True, is_val=False)
    unit = Unit(SourceOffset(1, 0), SourceOffset(2, 0), chunk, 0)

    part = encode_unit(unit, recipe)
    assert part.problems == ()
    assert part.tokens.size / 2048 < part.compared_tokens < part.tokens.size / 128

    class Late(Erring):
        def encode_batch_flat(self, texts: list[str], **options: Any) -> tuple[bytes, bytes]:
            ids, ends = super().encode_batch_flat(texts, **options)
            found = np.frombuffer(ids, "<u4").copy()
            found[300::300] ^= 1
            return found.tobytes(), ends

    install(monkeypatch, lambda text: False)
    monkeypatch.setattr(tokenizer_module, "load_fastokens", lambda one: Late(one, bool))
    assert [problem.is_of_engine for problem in encode_unit(unit, recipe).problems] == [True]


def test_little_text_is_compared_too(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the third gate would silently not exist for a small run."""
    recipe = Recipe(replace(known(tokenizer), engine=FASTOKENS), ("text",), None, None, 0.0)
    rows = Rows((Strings.of([b"a page", b"another"]),), 0)
    unit = Unit(SourceOffset(0, 0), SourceOffset(1, 0), rows, 0)

    part = encode_unit(unit, recipe)
    assert part.compared_tokens == part.tokens.size > 0

    install(monkeypatch, lambda text: "another" in text)
    assert [problem.is_of_engine for problem in encode_unit(unit, recipe).problems] == [True]


def test_a_verdict_does_not_stand_for_a_package_that_cannot_be_loaded(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines with other libraries share a home folder; and a damaged verdict is found again."""
    file = known(tokenizer)
    Path(engine._verdict_path(file)).write_text('{"differs": null}')
    assert engine._kept_verdict(file) is None
    Path(engine._verdict_path(file)).write_text("[]")
    assert engine._kept_verdict(file) is None
    keep_verdict(file, "")

    def fails(_: Any) -> None:
        raise ImportError("no libc")

    monkeypatch.setattr(tokenizer_module, "load_fastokens", fails)
    chosen, reason = choose_engine(read(tokenizer), "auto", SMALL_BYTES, "")
    assert chosen.engine == "tokenizers"
    assert reason.endswith("no libc")


def test_a_dry_run_without_text_says_so(tmp_path: Path) -> None:
    """It said how long nothing takes."""
    path = tmp_path / "x.jsonl"
    path.write_text("")
    said = ingest(path, "--tokenizer", "bytes", "--out", tmp_path / "out", "--dry-run")
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith(f"error: {path}: has no text to encode")
