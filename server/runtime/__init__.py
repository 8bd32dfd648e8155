"""What the processes of a server share. Knows nothing of tokens.

process/            its signals, its memory, its threads
threads/            pools, pollers, and how often they may act
small_files.py      files that are read or written whole
cache_folder.py     where a user's programs keep what can be computed again
once_a_machine.py   a lock by which the processes of a machine do a work once
memo.py             values that take long to make: the last used are kept
http_server.py      a small HTTP server, for pages
json_log.py         log records as JSON
exceptions.py       how unexpected exceptions are logged
"""
