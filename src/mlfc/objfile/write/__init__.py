"""Object files that hold data alone: written without a compiler, and piece by piece, so that nothing is joined."""
