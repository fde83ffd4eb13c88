"""Base utilities: data types, fixed-point numbers, names, files, archives, progress."""
