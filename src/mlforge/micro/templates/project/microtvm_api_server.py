"""The API server of this project: microTVM's clients start it, and ``mlforge project``."""

from pathlib import Path

from project_server.project import Project
from project_server.server import main

if __name__ == "__main__":
    main(lambda: Project(Path(__file__).parent))
