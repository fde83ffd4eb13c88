"""Files written under the project's former name, and tests that they still load."""
