"""datatrove's tokenizer step, with one process per core.

Source: github.com/huggingface/datatrove, examples/tokenize_c4.py, on this machine's files.
Run: python -m benchmarks.peers.datatrove_step PAGES TOKENIZER OUT
"""

from __future__ import annotations

import os
import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer

END = "<|endoftext|>"


def main() -> None:
    """Encode all files of a folder."""
    pages, tokenizer_path, out = sys.argv[1:]
    cores = len(os.sched_getaffinity(0))
    steps = [
        ParquetReader(pages),
        DocumentTokenizer(
            f"{out}/tokens",
            local_working_dir=f"{out}/work",
            tokenizer_name_or_path=tokenizer_path,
            eos_token=END,
            shuffle_documents=False,
        ),
    ]
    LocalPipelineExecutor(
        steps, tasks=cores, workers=cores, logging_dir=f"{out}/logs", skip_completed=False
    ).run()


if __name__ == "__main__":
    main()
