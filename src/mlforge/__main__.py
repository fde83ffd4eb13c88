"""``python -m mlforge``: the command line without the installed script."""

from mlforge.cli.main import run

if __name__ == "__main__":
    run()
