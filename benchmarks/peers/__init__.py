"""What people use today, one file each, at the settings that its own documentation gives.

Every module offers `take(source) -> Iterator[int]`, tokens of each batch delivered, and those with
a server of their own `serve(path)`, which prints "ready ADDRESS" and serves until it is ended.
`python -m benchmarks.peers.run` runs one of them in a process of its own.
"""
