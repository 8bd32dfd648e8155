"""Work in threads and processes: pools, pollers, and how often they may act."""
