"""Rows -> tensors on a device: widening, pinned memory, transfer. Knows nothing of gRPC."""
