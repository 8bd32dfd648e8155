"""The tokens of each sample.

orders/        which place of a corpus an own sample is; one published algorithm per file
mixture_v1     which source a sample is of
own_samples    samples of a source, by epoch
packing        documents -> pieces -> rows
document_rows  the rules of that: what a piece is, and what becomes of long documents
plan           samples -> spans of tokens
spans          these
inverse        which samples have a place
"""
