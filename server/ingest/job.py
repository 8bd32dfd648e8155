"""The job of an ingest and its checkpoint: what has to be known to resume after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .tokenize.recipe import Recipe
from .tokenize.tokenizer import FASTOKENS, FASTOKENS_VERSION, TOKENIZERS
from .units import Problem, SourceOffset, TextSource

Tally = dict[str, tuple[int, str]]
"""Kind of problem -> how often it occurred, and where first."""


@dataclass(frozen=True, slots=True)
class Job:
    """Sources and options of an ingest: the same job gives the same bytes.

    prepend_token, append_token: their texts.  shuffle_buffer: documents per group; 1 does not
    shuffle.  shard_tokens: maximum per shard.  engine_reason: why the engine of the recipe encodes.
    """

    sources: tuple[TextSource, ...]
    recipe: Recipe
    prepend_token: str | None = None
    append_token: str | None = None
    shuffle_buffer: int = 1
    seed: int = 0
    shard_tokens: int = 100_000_000
    engine_reason: str = ""

    @property
    def encoded_by(self) -> dict[str, str]:
        """The packages on whose versions the tokens depend."""
        file = self.recipe.tokenizer_file
        if not file.version:
            return {}
        engine = f" {FASTOKENS_VERSION}" if file.engine == FASTOKENS else ""
        return {TOKENIZERS: file.version, "engine": f"{file.engine}{engine}"}

    def facts(self) -> dict[str, Any]:
        """Return what has to be the same for an ingest to resume."""
        recipe = self.recipe
        template = recipe.chat_template
        return {
            "tokenizer_sha256": recipe.tokenizer_file.sha256,
            "columns": list(recipe.columns),
            "are_tokens": recipe.are_tokens,
            "chat_template_sha256": template and template.sha256,
            "template_variables": dict(template.variables) if template else {},
            "tools_column": recipe.tools_column,
            "id_column": recipe.id_column,
            "prepend_token": self.prepend_token,
            "append_token": self.append_token,
            "special_tokens_in_text": recipe.tokenizer_file.parses_special,
            "val_fraction": recipe.val_fraction,
            "shuffle_buffer": self.shuffle_buffer,
            "seed": self.seed,
            "shard_tokens": self.shard_tokens,
            "sources": [
                {"path": s.path, "size_bytes": s.size_bytes, "written_ns": s.written_ns}
                for s in self.sources
            ],
        }


@dataclass(slots=True)
class SplitProgress:
    """What is written of a split.

    shards: tokens and index entries of each complete shard.  tokens, ends, last_end: tokens, index
    entries and the last index entry of the open shard.  documents: number in the split.
    id_bytes: size of the ids of the open shard.  targets: tokens of the split that its masks allow.
    """

    shards: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0
    ends: int = 0
    last_end: int = 0
    documents: int = 0
    id_bytes: int = 0
    targets: int = 0

    @property
    def all_tokens(self) -> int:
        """Tokens in the split."""
        return self.tokens + sum(tokens for tokens, _ in self.shards)


@dataclass(slots=True)
class Checkpoint:
    """The state of an ingest: all that has to be known to resume.

    place: where to resume.  splits: what was written.  problems: those before that place, by number
    of the source.  hashes: SHA-256 of sources in hexadecimal digits, by number.  compared_tokens:
    how many of the sample two engines gave.
    """

    place: SourceOffset = field(default_factory=lambda: SourceOffset(0, 0))
    splits: dict[str, SplitProgress] = field(default_factory=dict)
    problems: dict[int, Tally] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)
    compared_tokens: int = 0

    @classmethod
    def read(cls, path: str) -> Checkpoint:
        """Return the last checkpoint that was written.  Raises: OSError, ValueError."""
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        splits = {
            name: SplitProgress(**counts | {"shards": [tuple(shard) for shard in counts["shards"]]})
            for name, counts in kept["splits"].items()
        }
        problems = {
            int(number): {what: (count, where) for what, (count, where) in tally.items()}
            for number, tally in kept["problems"].items()
        }
        hashes = {int(number): sha256 for number, sha256 in kept.get("hashes", {}).items()}
        compared_tokens = int(kept.get("compared_tokens", 0))
        return cls(SourceOffset(*kept["place"]), splits, problems, hashes, compared_tokens)

    def json(self) -> str:
        """Return it as `read` reads it."""
        return json.dumps(asdict(self))

    @property
    def documents(self) -> int:
        """Number in all splits."""
        return sum(counts.documents for counts in self.splits.values())

    @property
    def tokens(self) -> int:
        """Number in all splits."""
        return sum(counts.all_tokens for counts in self.splits.values())

    def count(self, source: int, problems: Sequence[Problem]) -> None:
        """Count problems of a source."""
        for problem in problems:
            tally = self.problems.setdefault(source, {})
            count, where = tally.get(problem.what, (0, problem.where))
            tally[problem.what] = count + 1, where
