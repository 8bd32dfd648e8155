"""Token files on this machine's file systems.

door.py            finds and opens them
choice.py          how those of a dataset are read, and why
watched_bytes.py   what both ways have in common: truncated and changed files, retries
mapped_bytes.py    files in one range of memory; the kernel copies out of the map
pread_bytes.py     files read by pread, for network file systems
file_table.py      all of them by number: addresses, and the last bytes that are not 0
descriptors.py     the descriptors of pread_bytes.py: all files, or those used last
shard.py           one file: its layout, its stat, its last bytes
files.py           opens one
replacing.py       a file that takes the place of another one
safe_copy.py       copies out of the map by the kernel: no SIGBUS if a file was truncated
readahead.py       reads what the next frames need ahead
syscalls.py        the system calls that Python does not offer
"""
