"""The process itself: its signals, its memory and its threads, as the kernel counts them."""
