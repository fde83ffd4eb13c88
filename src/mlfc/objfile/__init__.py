"""Object files, libraries and static archives of every system: one place that reads and writes their formats."""
