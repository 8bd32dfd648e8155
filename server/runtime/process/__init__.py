"""The process itself, as the kernel counts and signals it.

signals.py        SIGTERM, SIGINT and SIGHUP, received by a thread
memory_limit.py   how much memory it may still use
use.py            what it uses: threads and memory
mallopt.py        freed memory stays in the process
"""
