"""Which boards a model fits, and with which options."""
