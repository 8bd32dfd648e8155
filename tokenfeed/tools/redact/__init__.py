"""tokenfeed redact: tokens are taken out of a dataset, and erased.

__main__    the command
redacting   documents -> ranges -> a longer list -> erased tokens
waiting     whether servers have taken up the new files
"""
