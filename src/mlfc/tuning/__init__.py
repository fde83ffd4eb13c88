"""Search for the fastest kernel parameters by measurement."""
