"""The API server of a firmware project: microTVM's Project API over two pipes.

This folder is copied into every project and is self-contained: it imports only Python's standard library (and pyserial
if a serial port is opened), and runs on Python 3.8 or later.
"""
