"""Makes a small real corpus: the documentation that comes with every Python.

    python examples/corpus.py FOLDER

Writes train.bin (flat uint16 tokens) and its tokenizer.json to FOLDER, unless train.bin exists.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096


class NotEmptyError(Exception):
    """The folder contains files of other origin."""


def make_corpus(folder: Path) -> tuple[Path, Path]:
    """Return the paths of tokens and tokenizer; makes both unless the tokens exist.

    Raises: NotEmptyError if the folder contains something else; OSError.
    """
    path, tokenizer_path = folder / "train.bin", folder / "tokenizer.json"
    if path.exists():
        print(f"{path} exists", flush=True)
        return path, tokenizer_path
    folder.mkdir(parents=True, exist_ok=True)
    partial, tokenizer_partial = folder / "train.bin.partial", folder / "tokenizer.json.partial"
    ours = {partial, tokenizer_partial}
    if partial.exists():
        # An earlier run ended between its last two steps.
        ours.add(tokenizer_path)
    if others := set(folder.iterdir()) - ours:
        raise NotEmptyError(f"{folder} has no {path.name}, but contains {min(others).name}")
    partial.touch()
    pages = [topics[name] for name in sorted(topics)]
    tokenizer = train_tokenizer(pages)
    tokens = [token for page in pages for token in tokenizer.encode(page).ids]
    # Renamed when complete, the tokens last: the next run checks for them.
    np.array(tokens, dtype=np.uint16).tofile(partial)
    tokenizer.save(str(tokenizer_partial))
    os.replace(tokenizer_partial, tokenizer_path)
    os.replace(partial, path)
    print(
        f"made {path}: {len(tokens):,} tokens from {len(pages)} pages of Python's documentation",
        flush=True,
    )
    return path, tokenizer_path


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--if-empty", action="store_true", help="do nothing if FOLDER contains other files"
    )
    arguments = parser.parse_args()
    try:
        make_corpus(arguments.folder)
    except NotEmptyError as error:
        if not arguments.if_empty:
            raise SystemExit(str(error)) from None
        print(f"{error}; no corpus was made", flush=True)
    except OSError as error:
        raise SystemExit(f"{error.filename} cannot be written: {error.strerror}") from None
