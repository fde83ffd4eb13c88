"""Building firmware and running it, emulated or on a board."""
