"""Dynamic models: their compiled main functions, called from Python."""
