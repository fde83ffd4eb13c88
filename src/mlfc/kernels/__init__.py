"""Kernel templates: the loops of the operators that carry the time, by target family."""
