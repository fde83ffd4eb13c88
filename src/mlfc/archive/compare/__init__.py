"""What differs between two archives."""
