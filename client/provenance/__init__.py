"""What a checkpoint and the history in it tell of a run, without a server."""
