"""The API server of a firmware project: microTVM's Project API over two pipes.

This folder is copied into every project, where it stands alone: it imports Python's own library only (and pyserial
where a serial port is opened), and runs on Python 3.8 or later.
"""
