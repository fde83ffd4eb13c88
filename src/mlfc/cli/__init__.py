"""The command line: one thin file a command, which parses, calls the library and prints."""
