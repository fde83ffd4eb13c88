"""The DSP extension of ARM's microcontrollers: pairs of 16-bit numbers in a word."""
