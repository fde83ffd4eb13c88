"""Every fault of an archive."""
