"""What a feed reads: the interface of its datasets, its stream as a value, and what changes it."""
