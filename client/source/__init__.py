"""Where rows come from: servers, with failover over replicas, or files of this machine. Knows
nothing of torch.

datasets.py         the interface of both, and what they have in common
servers.py          Servers: connections to replicas, and whether each of them is usable
files.py            Files: a server's own reader, in this process
open_source.py      from the target of a feed to one of them
file_target.py      the words of a target of files
server_check.py     by a description: whether a stream can be read from a server, or from files
plane_selection.py  which planes a stream requests
describe.py         Describe, of all servers at once
calls.py            what each call of a stream asks for
background_rows.py  rows that a thread brings for one consumer
row_stream.py       rows from servers
failover.py         which server is next, after what timeout and pause, and when to give up
file_rows.py        rows from files

docs/faults.md follows an error on this path, from a truncated file of a server to `next(feed)`.
"""
