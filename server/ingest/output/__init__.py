"""Token ids -> shards, in shuffled order if wanted."""
