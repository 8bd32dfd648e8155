"""TRL's `pack_dataset`: best-fit decreasing on rows of T tokens, of a thousand documents at a time.

"bfd" truncates documents of more than T tokens, "bfd_split" splits them. `datasets.map` passes a
thousand documents at a time, unless it is told otherwise. Tokens are copied, so the time is not
that of the rule alone.
"""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from trl import pack_dataset

from benchmarks.packing_run import Numbers, Packed, main

SETTINGS: dict[str, dict[str, Any]] = {
    "bfd": {"strategy": "bfd", "batch_size": 1000},
    "bfd_split": {"strategy": "bfd_split", "batch_size": 1000},
    "bfd_split, all at once": {"strategy": "bfd_split", "batch_size": None},
}


def pack(lengths: Numbers, context_length: int, *, strategy: str, batch_size: int | None) -> Packed:
    """Pack documents of zeros."""
    datasets.disable_progress_bars()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.ListArray.from_arrays(ends, pa.array(np.zeros(ends[-1], np.int16)))
    documents = datasets.Dataset(pa.table({"input_ids": tokens}))
    packed = pack_dataset(
        documents, context_length, strategy, map_kwargs={"batch_size": batch_size}
    )
    of_rows = packed.data.column("seq_lengths").combine_chunks()
    counts = of_rows.value_lengths().to_numpy()
    sizes = of_rows.flatten().to_numpy().astype(np.int64)
    return Packed(np.repeat(np.arange(len(packed)), counts), sizes, context_length)


if __name__ == "__main__":
    main(pack, SETTINGS)
