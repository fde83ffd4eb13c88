"""The training text and its alphabet."""

from __future__ import annotations

import numpy as np

TEXT = """the cat sat on the mat. the dog ran to the door. the sun is warm and the sea is blue.
the bird sings in the tree. the boy has a red ball. the girl reads a good book.
the moon is cold and the night is long. the rain falls on the roof. the fish swims in the sea.
the old man sleeps in his chair. the baker makes fresh bread. the farmer grows corn and wheat.
the train stops at the small town. the ship sails over the sea. the wind blows from the north.
"""
ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
PROMPT, LENGTH = 8, 40
"""Numbers of input and output letters."""


def numbers(text: str) -> np.ndarray:
    """Return the letters of a text as indices into the alphabet."""
    return np.array([ALPHABET.index(letter) for letter in text.replace("\n", " ")], np.int64)


def letters(places: np.ndarray) -> str:
    """Return the text of alphabet indices."""
    return "".join(ALPHABET[place] for place in places.reshape(-1))
