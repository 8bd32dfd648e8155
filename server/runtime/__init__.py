"""The process: signals, polling, memory, output. Knows nothing about tokens."""
