"""Writing archives: from compiled models, and from older archives."""
