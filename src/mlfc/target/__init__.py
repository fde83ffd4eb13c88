"""Target strings and what targets can do."""
