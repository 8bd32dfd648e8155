"""Mixtures of a feed: as users write them, and how one goes on after a state.

recipe.py              what a user asks for, by names -> the sources of a stream, their groups of
                       blocks, and its stages
samples_per_block.py   shares of sources -> whole samples of a block
continuation.py        with which stages a mixture goes on after a saved state
"""
