"""The rows of streams over some datasets: for the frames of a server, and for local files.

served_datasets.py   datasets by name: a request is checked, and gets a reader
expected_stream.py   whether the stream of a request is the one that its client expects
reader.py            plans rows, and fills the memory of its caller with their tokens and planes
held_groups.py       which groups of blocks a stream is in, for storage that fetches them ahead
"""
