"""What a run has read: from the states in its checkpoint, and by what a server or files answer."""
