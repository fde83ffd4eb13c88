"""Command line: one small module per command, which parses options, calls the library and prints."""
