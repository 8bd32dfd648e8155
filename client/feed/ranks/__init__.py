"""The ranks of a feed.

coordinates.py   arguments, torch.distributed or the environment -> rank and world size
agreement.py     whether all ranks of a process group read the same stream
"""
