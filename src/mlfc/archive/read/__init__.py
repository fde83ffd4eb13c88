"""Opening archives of every version."""
