"""Rows -> batches on a device: widening, pinned memory, transfer, documents.

Knows nothing of gRPC.
"""
