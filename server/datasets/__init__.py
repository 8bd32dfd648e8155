"""From a name to a dataset that is checked and fingerprinted. Knows nothing of gRPC."""
