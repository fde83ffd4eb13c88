"""Firmware: boards as data, projects that build without mlforge, and runs under an emulator."""
