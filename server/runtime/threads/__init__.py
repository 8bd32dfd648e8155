"""Work in threads and processes.

executors.py        units of work in processes of this machine or of a Ray cluster, in order
parallel.py         a function of many items, in several threads
worker_threads.py   a few threads that do work from a queue
poller.py           polls what may change while the server runs
poll_rate.py        how many stat calls a second polling may do
"""
