"""Rows -> batches on a device. Knows nothing of gRPC.

row_source.py      the interface of what rows come from
host_transfer.py   to arrays in host memory
transfer.py        to tensors on a device: by widening.py, and pinned_ring.py for CUDA, which copies
                   on a stream of its own; the caller's stream waits for the copy
target_mask.py     planes that mask targets -> y = -100
numpy_batch.py     what a batch has besides x and y; rich_batch.py: the same as tensors
documents.py       where documents begin
loaders.py         refuses loaders that would turn batches into others
"""
