"""The process: signals, polling, memory, output. Knows nothing of tokens."""
