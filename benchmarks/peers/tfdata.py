"""tf.data service: a dispatcher and a worker in another process, one consumer.

Source: tensorflow.org/api_docs/python/tf/data/experimental/service (module and `distribute`) and
tensorflow.org/guide/data_performance: records of fixed length, shuffled and batched in the service,
AUTOTUNE and prefetch on both sides, no compression on one machine; widened by the client, so that 2
bytes per token are sent. An element is a batch, or several batches that the client splits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contender import main, serving
from benchmarks.rows import BATCH_SIZE, ROW_TOKENS

SETTINGS = {
    "1 batch an element": {"element_batches": 1},
    "8 batches an element": {"element_batches": 8},
}

_SHUFFLED_ROWS = 1024


@contextmanager
def batches(path: Path, *, element_batches: int) -> Iterator[Iterator[tuple[Any, Any]]]:
    """Yield an iterator over (x, y), int64 on the CPU, as numpy arrays over TensorFlow's memory."""
    import tensorflow as tf

    rows = element_batches * BATCH_SIZE
    shape = (element_batches, BATCH_SIZE, ROW_TOKENS)

    def decoded(records: Any) -> Any:
        return tf.reshape(tf.io.decode_raw(records, tf.uint16), shape)

    def widened(tokens: Any) -> tuple[Any, Any]:
        return tf.cast(tokens[:, :-1], tf.int64), tf.cast(tokens[:, 1:], tf.int64)

    auto = tf.data.AUTOTUNE
    record_bytes = 2 * ROW_TOKENS
    rest_bytes = path.stat().st_size % record_bytes
    with serving("benchmarks.peers.tfdata", "--serve", "--data", str(path)) as address:
        dataset = (
            tf.data.FixedLengthRecordDataset(str(path), record_bytes, footer_bytes=rest_bytes)
            .repeat()
            .shuffle(_SHUFFLED_ROWS)
            .batch(rows, drop_remainder=True, num_parallel_calls=auto)
            .map(decoded, num_parallel_calls=auto)
            .prefetch(auto)
            .apply(
                tf.data.experimental.service.distribute(
                    processing_mode=tf.data.experimental.service.ShardingPolicy.OFF,
                    service=f"grpc://{address}",
                    compression=None,
                )
            )
        )
        dataset = dataset.unbatch().map(widened, num_parallel_calls=auto).prefetch(auto)
        yield dataset.as_numpy_iterator()


def serve(path: Path) -> None:
    """Run dispatcher and worker until terminated. The dataset comes from the client."""
    from tensorflow.data.experimental import service

    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(f"serving {path} on {address}", flush=True)
    threading.Event().wait()
    del worker


if __name__ == "__main__":
    main(batches, SETTINGS, serve=serve)
