"""The formats that checkpoints have: each module reads the values of one, and runs no code of it.

What is read is a sequence of values, each with the keys that lead to it.
"""
