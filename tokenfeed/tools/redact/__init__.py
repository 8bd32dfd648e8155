"""tokenfeed redact: tokens are taken out of a dataset, and erased.

__main__    the command
redacting   documents -> ranges -> a longer list -> erased tokens
erasing     files -> new ones without the tokens of a list
describing  what an operator is told of the lists of a dataset
waiting     whether servers have taken up the new files
"""
