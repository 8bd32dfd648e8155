"""What the streams of a server do, counted frame by frame: for metrics, the status service and the
log. The only place where sent rows are counted; what shows them is in ../monitoring/.

    tracker.py   Activity: every call reports to it
    streams.py   one stream: its rates, who waits for whom, its lines in the log
    counts.py    totals, histograms and rates

A frame of 1 MiB takes a millisecond or so, and counting it a few microseconds.
"""
