"""Running a model: ahead of time compiled, or operator by operator from its graph."""
