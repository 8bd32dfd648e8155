"""Where rows come from: servers, with failover over replicas, or files of this machine. Knows
nothing of torch.

datasets.py         the interface of both, and what they have in common
servers.py          Servers: connections to replicas, and whether each of them is usable
files.py            Files: a server's own reader, in this process
open_source.py      from the target of a feed to one of them
file_target.py      the words of a target of files
check.py            by a description: whether a stream can be read from a server, or from files
plane_selection.py  which planes a stream requests
describe.py         Describe, of all servers at once
calls.py            what each call of a stream asks for
background_rows.py  rows that a thread brings for one consumer
queued_rows.py      their queue
row_stream.py       rows from servers
failover.py         which server is next, and when to give up
growth.py           whether what servers make gets on
file_rows.py        rows from files

A file of a server is truncated: the server refuses rows of that dataset with DATA_LOSS.
`error_from_rpc` (transport/channel.py) makes CorpusChanged of it, row_stream.py ends its attempt
with that, failover.py goes on with the next server, and raises the error once each server has
refused twice. The thread of background_rows.py keeps it; `peek` raises it in the consumer's thread
behind the rows that had arrived, and so does `next(feed)`. Of files of this machine
`LocalDatasets.explained` words the error for who reads them, and nothing is tried again.
"""
