"""The ground: data types, fixed-point numbers, names, files, tars, progress."""
