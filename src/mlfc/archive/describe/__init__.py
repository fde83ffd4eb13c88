"""Descriptions of archives and libraries: tables, pictures and profiles."""
