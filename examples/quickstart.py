"""A quick start: makes a small real corpus, serves it, prints rows, and measures the rate.

The corpus is the documentation that comes with every Python. Run it from the repository's root:

    python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from corpus import NotEmptyError, make_corpus
from serving import serving
from tokenizers import Tokenizer

from tokenfeed import RemoteBatches

BATCH_SIZE, CONTEXT_LENGTH = 32, 1024
TOKENS_SHOWN = 48


def main() -> int:
    """Run all steps.  Returns: 0, or 1 if the server does not start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("quickstart-data"),
        help="of the corpus (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="duration of the measurement (default: %(default)s)",
    )
    arguments = parser.parse_args()

    try:
        path, tokenizer_path = make_corpus(arguments.folder)
    except NotEmptyError as error:
        raise SystemExit(str(error)) from None
    if not tokenizer_path.exists():
        raise SystemExit(f"{arguments.folder} has {path.name}, but not its {tokenizer_path.name}")
    with serving(path) as address:
        show_rows(address, Tokenizer.from_file(str(tokenizer_path)))
        print(
            f"\n{tokens_per_second(address, arguments.seconds) / 1e6:.0f} million tokens/s, ",
            end="",
        )
        print(f"batches of {BATCH_SIZE} x {CONTEXT_LENGTH} as int64 (x, y) on the CPU")
    print_next_steps(path, tokenizer_path)
    return 0


def show_rows(address: str, tokenizer: Tokenizer) -> None:
    """Print two rows as text, and the shift of y."""
    with RemoteBatches(
        address, 2, CONTEXT_LENGTH, order="shuffled", seed=1337, num_batches=1
    ) as feed:
        x, y = next(feed)
    print(f"x: {tuple(x.shape)} {x.dtype}; y is the same, shifted by one token")
    for row in x:
        print(f"  {tokenizer.decode(row[:TOKENS_SHOWN].tolist())!r} ...")
    print(f"x[0]: {x[0, :8].tolist()} ...\ny[0]: {y[0, :8].tolist()} ...")


def tokens_per_second(address: str, seconds: float) -> float:
    """Return the tokens of x that arrive per second."""
    token_count = 0
    with RemoteBatches(address, BATCH_SIZE, CONTEXT_LENGTH, order="shuffled") as feed:
        next(feed)
        begun = time.perf_counter()
        for x, _ in feed:
            token_count += x.numel()
            if time.perf_counter() - begun >= seconds:
                break
        return token_count / (time.perf_counter() - begun)


def print_next_steps(path: Path, tokenizer_path: Path) -> None:
    """Print commands to paste into two terminals in this folder."""
    activate = ""
    if sys.prefix != sys.base_prefix:
        activate = f". {shlex.quote(os.path.relpath(sys.prefix))}/bin/activate\n"
    tokens, tokenizer = shlex.quote(str(path)), shlex.quote(str(tokenizer_path))
    sizes = f"{BATCH_SIZE}, {CONTEXT_LENGTH}"
    print(
        f"""
Next steps, in this folder. In one terminal:

{activate}tokenfeed serve --data {tokens} --port 50051

In a second terminal:

{activate}tokenfeed show localhost:50051 --order shuffled --tokenizer {tokenizer}
python - <<'END'
from tokenfeed import RemoteBatches

for x, y in RemoteBatches("localhost:50051", {sizes}, order="shuffled", num_batches=3):
    print(tuple(x.shape), tuple(y.shape))
END"""
    )


if __name__ == "__main__":
    sys.exit(main())
