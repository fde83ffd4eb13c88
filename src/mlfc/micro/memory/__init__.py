"""Memory use of firmware on a board, planned and linked: linker maps and stack bounds."""
