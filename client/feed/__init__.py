"""Feeds, the iterators over batches.

feed.py                Feed: all of it, as an iterator; epochs.py: one epoch as a sized iterable
delivery.py            how one batch arrives: the position, the rows, their transfer to the device;
                       a jump of the position begins another request
feed_stream.py         what a feed reads: its stream, the datasets behind it, the position
first_stream.py        the first one, by the arguments of a feed
requested_changes.py   other weights, another context length, a redaction
change_placement.py    where each may begin, and which stage it replaces
length_changes.py      another context length, by a call or as declared with a feed
lengths.py             context lengths that a user writes, and how many rows a batch has at each
cursor.py              the position
options.py             each argument once
mixture/               what a user asks for -> sources and stages
state.py               the saved state
resume.py              which stream continues one, and where, also at another context length
state_differences.py   how a state and the feed that loads it differ, and what `allow` permits
history.py             what was delivered; named.py: the same for people
ranks/                 which rows a rank has, and whether all ranks read the same
row_dataset.py         the rows of an epoch by their index
stats.py               statistics
"""
