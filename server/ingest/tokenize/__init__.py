"""Text -> token ids, in worker processes."""
