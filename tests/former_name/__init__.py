"""What the project wrote under its former name, and tests that it still loads."""
