"""Token files on this machine's file systems.

local_store.py     the common part of both stores: rows, narrowing, detection of truncated files
mapped_store.py    files in one range of memory; the kernel copies rows out of the map
pread_store.py     files read by pread, for network file systems
descriptors.py     the descriptors of pread_store.py: all files, or those used last
opened_shards.py   changes of the files since they were opened, and retries of failed reads
shard.py           one file: its layout, its stat, its last bytes
copying.py         the kernel copies rows out of the map
readahead.py       reads the rows of the next frames ahead
sidecar.py         stores a digest in a file beside the tokens
syscalls.py        the system calls that Python does not offer
"""
