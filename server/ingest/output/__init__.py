"""Token ids -> shards, shuffled on request."""
