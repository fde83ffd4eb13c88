"""What firmware takes of a board: linker maps and stacks, planned and linked."""
