"""The ranks of a feed: which rows are whose, and whether all of them read the same."""
