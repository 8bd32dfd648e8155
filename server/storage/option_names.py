"""The names of the options of a dataset, as errors name them: `tokenfeed serve` and other commands
have them, and `file:` targets. datasets/options.py says what each takes. The last ones are those of
object stores, of a process.
"""

from __future__ import annotations

from tokenfeed.errors import Option

DATA = Option("data")
FORMAT = Option("format")
DTYPE = Option("dtype")
ROW_TOKENS = Option("row-tokens")
READ = Option("read")
IMMUTABLE = Option("immutable")
MIXED_SPLITS = Option("mixed-splits")
VOCAB_SIZE = Option("vocab-size")
END_TOKEN = Option("document-end-token")
START_TOKEN = Option("document-start-token")
LOSS_MASK = Option("loss-mask")
REDACTIONS = Option("redactions")
CACHE_DIR = Option("cache-dir")

OBJECT_CACHE, OBJECT_CACHE_BYTES = "--object-cache", "--object-cache-bytes"
NO_CACHE = "none"
