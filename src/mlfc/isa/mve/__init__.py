"""The vector extension of ARM's microcontrollers (MVE, Helium)."""
