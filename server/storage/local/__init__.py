"""Token files on this machine's file systems: mapped, or read by pread."""
