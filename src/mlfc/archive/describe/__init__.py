"""What an archive or library contains: tables, pictures and profiles."""
