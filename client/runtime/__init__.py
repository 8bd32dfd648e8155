"""What all parts of the client use. Knows nothing of servers.

arguments.py      checks of user arguments
threads.py        threads that no signal interrupts, for a consumer that a signal may interrupt
notifier.py       wakes one thread, without a lock that a Ctrl-C could leave locked
supervisor.py     the thread of a feed that cancels tasks
awaited_task.py   work in a thread whose result a consumer waits for
counters.py       what the streams of a feed count
malloc.py         freed memory stays in the process
"""
