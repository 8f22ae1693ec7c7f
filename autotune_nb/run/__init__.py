"""The run directory: a tuning session on disk, in pure Python."""
