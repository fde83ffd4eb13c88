"""Kernel templates: the loop nests of the time-critical operators, by target family."""
