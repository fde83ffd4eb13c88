"""Applications of the build systems that bring their own start-up: a main function over the C library's output."""

from __future__ import annotations

from mlfc.archive.templates.demo import check_files, module_function
from mlfc.archive.templates.subject import described_subject
from mlfc.micro.project.model_interface import interface_of
from mlfc.micro.project.render import render
from mlfc.micro.project.template import ProjectModel
from mlfc.support.content import to_bytes

APPLICATION_TYPES = ("standalone", "selftest")
"""Of `template.PROJECT_TYPES`, what these build systems have applications for."""

_EXPECTED = {"standalone": "{name}: done", "selftest": "PASS [0-9]+ of [0-9]+"}


def application_files(model: ProjectModel, project_type: str, entry: str) -> dict[str, bytes]:
    """Return the C of an application by file name; it includes the headers of the model.

    `project_type`: of APPLICATION_TYPES.
    `entry`: the declaration of the function that the system starts; one of type ``void`` returns nothing.
    """
    if project_type == "selftest":
        return {"main.c": _selftest_main(model, entry), **selftest_files(model)}
    return {"main.c": _standalone_main(model, entry), **vector_files(model)}


def selftest_files(model: ProjectModel) -> dict[str, bytes]:
    """Return the C of ``<module>_selftest``, which checks the test vectors and writes through ``tensor_write``."""
    name = f"{model.name}_selftest"
    function = module_function(described_subject(model.name, model.details), checked=True, embedded=True)
    return {
        f"{name}.h": render("application/selftest.h", name=model.name),
        f"{name}.c": render("application/selftest.c", name=model.name, function=function),
        **check_files(),
        **vector_files(model),
    }


def vector_files(model: ProjectModel) -> dict[str, bytes]:
    """Return the test vectors in C by file name; none where the archive has none."""
    return {name: to_bytes(data) for name, data in model.vectors.items()}


def expected_line(model: ProjectModel, project_type: str) -> str:
    """Return a regular expression of a line that the application prints where all is well."""
    return _EXPECTED[project_type].format(name=model.name)


def _standalone_main(model: ProjectModel, entry: str) -> bytes:
    """Return a main that runs the module once, on the first test vector where there is one, and prints its outputs."""
    is_void = entry.startswith("void")
    return render(
        "application/main.c",
        model=interface_of(model),
        entry=entry,
        has_vectors=bool(model.vectors),
        failed="" if is_void else " 1",
        succeeded="" if is_void else " 0",
    )


def _selftest_main(model: ProjectModel, entry: str) -> bytes:
    return render("application/selftest_main.c", name=model.name, entry=entry, is_void=entry.startswith("void"))
