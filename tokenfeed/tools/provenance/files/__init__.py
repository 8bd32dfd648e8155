"""The formats that checkpoints have: each module reads the values of one, and runs no code of it.

torch_file.py           a checkpoint of torch.save
distributed_folder.py   one of torch.distributed.checkpoint
pickle_bounds.py        what a pickle would make, bounded before it is made
checkpoint_file.py      files, opened so that none can make a reader wait

What is read is a sequence of values, each with the keys that lead to it.
"""
