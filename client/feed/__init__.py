"""Feeds, the iterators over batches.

feed.py          Feed: all of it, as an iterator
delivery.py      how one batch arrives: the position, the rows, their transfer to the device
batch_reader.py  the batches of one request; a jump of the position begins another one
feed_stream.py   what a feed reads: its stream, the datasets behind it, the position
cursor.py        the position
epochs.py        one epoch as a sized iterable
options.py       each argument once
mixture/         what a user asks for -> sources and stages
changes.py       other weights, a redaction, from a sample on
state.py         the saved state; resume.py: which stream continues it
history.py       what was delivered; named.py: the same for people
ranks/           which rows a rank has, and whether all ranks read the same
stats.py         statistics
"""
