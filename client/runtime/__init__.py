"""What all parts of the client use: threads, checks of arguments. Knows nothing of servers."""
