"""Which package encodes text: fastokens, for a fifth of the processor time, where its ids are
those of tokenizers.

Three gates keep them the same. A list of what was compared: anything else is encoded by tokenizers.
A probe before workers start: every code point, each added token, whitespace between words, long
words. And a sample of slices of the text, encoded by both while the ingest runs (encoding.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any

import numpy as np

from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest

from ...runtime import small_files
from ...runtime.cache_folder import cache_folder
from .tokenizer import (
    FASTOKENS,
    FASTOKENS_VERSION,
    TOKENIZERS,
    FastTokenizer,
    Tokenizer,
    TokenizerFile,
    installed,
    load_tokenizer,
)

OPTION = "--tokenizer-engine"
AUTO = "auto"
SMALL_BYTES = 16 << 20
"""Less text is encoded by tokenizers: the probe and loading GPT-2's take 3 s of processor time, in
which it encodes 12 MB."""
_PROBE = 2
"""The number of what is probed, raised when that changes."""
_TEXTS_AT_ONCE = 256
_LOG = logging.getLogger("tokenfeed.server")

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_SHORT}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN_2 = rf"{_SHORT}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN_3_5 = (
    rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
)


def _split(*patterns: str) -> dict[str, Any]:
    """Return the pre-tokenizer that splits at regular expressions, and then takes bytes."""
    splits = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, _byte_level(use_regex=False)]}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}


COMPARED: dict[str, tuple[Any, Any]] = {
    "GPT-2": (None, _byte_level(use_regex=True)),
    "Llama 3": (None, _split(_LLAMA_3)),
    "Qwen 2": ({"type": "NFC"}, _split(_QWEN_2)),
    "Qwen 3.5": ({"type": "NFC"}, _split(_QWEN_3_5)),
}
"""Normalizer and pre-tokenizer of the tokenizers that were compared on 850 MB of text, natural and
adversarial, by what they are known from (docs/decisions/0012). Those of SentencePiece are none of
them: for them fastokens takes `<0x41>` in the text for the token of that name."""

_WORDS = (
    *("the", "I'm", "DON'T", "123", "1234567", "3.14", "na\u00efve", "e\u0301te\u0301", "..."),
    *("--", "'s", "'\u017f", "don\u2019t", "_x", "\u6771\u4eac", "\u043c\u0438\u0440", "a/b\\c"),
    *("\U0001f44d\U0001f3fd", "\u0915\u094d\u0937\u093f", "\u0e20\u0e32\u0e29\u0e32", ""),
)
_SPACES = (
    *("", " ", "  ", "\t", "\n", "\r\n", "\n\n ", " \n", "\u00a0", "\u3000", "\u2028", "\x0b"),
    *("\x85", "\u200b", "\u180e", "\x00"),
)


def choose_engine(
    tokenizer_file: TokenizerFile, wanted: str, size_bytes: int, why_not: str
) -> tuple[TokenizerFile, str]:
    """Return a tokenizer with its engine and the version of tokenizers, and why it is that engine.

    wanted: auto, tokenizers or fastokens.  size_bytes: of the sources.  why_not: what prevents
    fastokens, for what these documents are; "" if nothing does.
    Raises: InvalidRequest if fastokens is wanted and cannot be used.
    """
    if tokenizer_file.is_bytes:
        reason = why_not = "bytes are their own tokens"
    else:
        load_tokenizer(tokenizer_file)  # an invalid one is that error
        tokenizer_file = replace(tokenizer_file, version=installed(TOKENIZERS))
        reason = why_not
    if wanted == TOKENIZERS:
        return tokenizer_file, f"{OPTION} {TOKENIZERS}"
    if not reason:
        reason = _not_here()
    if not reason and wanted == AUTO and size_bytes < SMALL_BYTES:
        reason = f"less than {SMALL_BYTES >> 20} MiB of text"
    if not reason:
        reason = _not_compared(tokenizer_file.content) or _not_same(tokenizer_file)
    if not reason:
        return replace(tokenizer_file, engine=FASTOKENS), "its tokens are those of tokenizers"
    if wanted == FASTOKENS:
        problem = f"{FASTOKENS} cannot be used: {reason}; omit it, or pass {TOKENIZERS}"
        raise InvalidRequest(OPTION, problem)
    return tokenizer_file, reason


def _not_here() -> str:
    """Return why fastokens cannot be imported as it was compared; "" if it can."""
    found = installed(FASTOKENS)
    if not found:
        return missing(FASTOKENS, "fast-ingest")
    return "" if found == FASTOKENS_VERSION else f"it is {found}, not {FASTOKENS_VERSION}"


def _not_compared(content: bytes) -> str:
    """Return in which way a tokenizer is not one of those that were compared; "" if it is one."""
    facts = json.loads(content)
    if not isinstance(facts.get("model"), dict) or facts["model"].get("type") != "BPE":
        return "the tokenizer is no BPE"
    pair = _bare(facts.get("normalizer")), _bare(facts.get("pre_tokenizer"))
    if pair not in COMPARED.values():
        return "its normalizer and pre-tokenizer are none of those that were compared"
    vocabulary: dict[str, int] = facts["model"]["vocab"]
    following = len(vocabulary)
    texts = set()
    for token in facts.get("added_tokens") or []:
        text, number = token["content"], token["id"]
        expected = vocabulary.get(text, following)
        if not text or text in texts or number != expected:
            return f"its added token {text!r} has the id {number}, where {expected} follows"
        following += text not in vocabulary
        texts.add(text)
    return ""


def _bare(part: Any) -> Any:
    """Return a normalizer or pre-tokenizer without what changes no token."""
    if isinstance(part, list):
        return [_bare(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Sequence" and not (
        part.get("normalizers") or part.get("pretokenizers")
    ):
        return None
    return {name: _bare(value) for name, value in part.items() if name != "trim_offsets"}


def _not_same(tokenizer_file: TokenizerFile) -> str:
    """Return where fastokens gives other tokens than tokenizers; "" if nowhere, as far as is known.
    What is found out is kept in the cache of this user.
    """
    kept = _kept_verdict(tokenizer_file)
    if kept:
        return kept
    try:
        tokenizer = load_tokenizer(replace(tokenizer_file, engine=FASTOKENS))
    except (ImportError, ValueError) as error:
        return f"it cannot load {tokenizer_file.name}: {error}"
    if kept is not None:
        return kept
    _LOG.info("comparing %s with %s for %s", FASTOKENS, TOKENIZERS, tokenizer_file.name)
    assert isinstance(tokenizer, FastTokenizer)
    found = first_difference(tokenizer, tokenizer.reference, json.loads(tokenizer_file.content))
    differs = "" if found is None else f"it gives other tokens for {found!r}"
    keep_verdict(tokenizer_file, differs)
    return differs


def _kept_verdict(tokenizer_file: TokenizerFile) -> str | None:
    """Return what `keep_verdict` kept; None if nothing that can be read."""
    try:
        with open(_verdict_path(tokenizer_file), encoding="utf-8") as file:
            differs = json.load(file)["differs"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return differs if isinstance(differs, str) else None


def keep_verdict(tokenizer_file: TokenizerFile, differs: str) -> None:
    """Keep what is known of fastokens with a tokenizer.  differs: as `_not_same` returns it."""
    path = _verdict_path(tokenizer_file)
    with suppress(OSError):  # it is found out again
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        small_files.replace_file(path, json.dumps({"differs": differs}).encode(), 0o600)


def _verdict_path(tokenizer_file: TokenizerFile) -> str:
    facts = [_PROBE, FASTOKENS_VERSION, tokenizer_file.version, tokenizer_file.parses_special]
    key = hashlib.sha256(json.dumps([tokenizer_file.sha256, *facts]).encode()).hexdigest()[:32]
    return os.path.join(cache_folder(), "engines", f"{key}.json")


def first_difference(engine: Tokenizer, reference: Tokenizer, facts: dict[str, Any]) -> str | None:
    """Return the first text of the probe for which two tokenizers give other tokens; None if there
    is none.

    facts: the tokenizer.json.
    """
    added = [token["content"] for token in facts.get("added_tokens") or []]
    of_tokens = _of_added([*added, *_unmerged(facts["model"])])
    of_all = chain(of_tokens, _of_spaces(), _long(facts["model"]["vocab"]))
    for texts in _in_groups(of_all):
        for text in _different(engine, reference, texts):
            return text
    for signs in _in_groups(_assigned()):
        # All at once: a text costs as much as ten characters.
        texts = list(map(_of_sign, signs))
        whole = "\n".join(texts)
        if _different(engine, reference, [whole]):
            return next(iter(_different(engine, reference, texts)), whole)
    return None


def _in_groups(texts: Iterable[str]) -> Iterator[list[str]]:
    left = iter(texts)
    while group := list(islice(left, _TEXTS_AT_ONCE)):
        yield group


def _different(engine: Tokenizer, reference: Tokenizer, texts: list[str]) -> list[str]:
    """Return the texts that have other tokens."""
    both = zip(texts, engine.encode_each(texts), reference.encode_each(texts), strict=True)
    return [text for text, one, other in both if not np.array_equal(one, other)]


def _assigned() -> Iterator[str]:
    """Yield the code points that Python knows, and others in between; those of private use in the
    first plane alone.
    """
    for number in range(0x110000):
        if 0xD800 <= number < 0xE000:
            continue
        sign = chr(number)
        kind = unicodedata.category(sign)
        if kind == "Cn" or (kind == "Co" and number >= 0xF0000):
            # Unassigned, perhaps not to a younger table.
            if number >= 0x40000 or number % 16:
                continue
        yield sign


def _unmerged(model: dict[str, Any]) -> Iterator[str]:
    """Yield the tokens of a vocabulary that no merge makes, so that no text should become them."""
    merges = (one.split(" ") if isinstance(one, str) else one for one in model["merges"])
    made = set(map("".join, merges))
    yield from (token for token in model["vocab"] if len(token) > 1 and token not in made)


def _of_sign(sign: str) -> str:
    return f"{sign}'s{sign} {sign}a1{sign}"


def _of_added(tokens: Iterable[str]) -> Iterator[str]:
    for token in tokens:
        yield from (token, f"a{token}b", f" {token} ", f"x  {token}\n\n{token}{token}'s")
        yield from (token[:-1], token[1:], token.swapcase(), f"e\u0301{token}\u0301 {token[:-1]}")


def _of_spaces() -> Iterator[str]:
    for first, space, second in product(_WORDS, _SPACES, _WORDS):
        yield f"{first}{space}{second}"
    for first, second, third in product(_SPACES, repeat=3):
        yield f"a{first}{second}{third}b"


def _long(vocabulary: Iterable[str]) -> Iterator[str]:
    """Yield texts of 500 to 10,000 signs that are one pre-token each: for long ones an engine may
    merge in another way.
    """
    choose = random.Random(0)
    words = sorted(token for token in vocabulary if token.isascii() and token.isalpha()) or ["a"]
    signs = (
        *("abcdefghijklmnopqrstuvwxyz", "ACGT", "a", "=", "-", "0123456789", " ", "\n"),
        *("\u6771\u4eac\u65e5\u672c\u8a9e", "\u043c\u0438\u0440", "\u0e20\u0e32\u0e29"),
    )
    for size in (500, 3000, 10_000):
        for some in signs:
            yield "".join(choose.choices(some, k=size))
        for _ in range(3):
            yield "".join(choose.choices(words, k=size // 3))[:size]
            word = choose.choice(words)
            yield (word * (size // len(word)))[:size]
