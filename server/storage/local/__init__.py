"""Token files on this machine's file systems.

local_store.py     what both stores have in common: rows, narrowing, the check for cut files
mapped_store.py    files in one range of memory; the kernel copies rows out of the map
pread_store.py     files read by pread, for network file systems
opened_shards.py   what became of the files since they were opened, and errors that heal
shard.py           one file: its layout, its map, its size and times
scratch.py         the buffers that rows are read into
readahead.py       reads the rows of the next frames ahead
sidecar.py         keeps a digest in a file beside the tokens
syscalls.py        the system calls that Python does not offer
"""
