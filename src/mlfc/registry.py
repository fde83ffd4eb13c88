"""Registry of entries by string key: operators, targets, boards, module kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Generic, TypeVar

from mlfc.errors import InternalError, OptionError, nearest, unknown

T = TypeVar("T")
_FILLING = RLock()
_PLUGINS = "mlfc.operators"
_loaded = False  # whether the entry points have been loaded
_extensible: list[Registry[Any]] = []


class Registry(Generic[T]):
    """A table from string keys to entries, filled by decorators or calls.

    `kind` names an entry in messages, in the singular: "operator", "target". `package` is imported with all its modules
    before the table is first read, so that a package of a higher layer can fill tables of lower layers, which never
    import it by name, and new modules are found automatically. `part` restricts this for subpackages to the module of
    that name, if they have it. With `plugins`, a missing key loads the entry points ``mlfc.operators`` of installed
    packages, which may add it.
    """

    def __init__(
        self, kind: str, package: str | None = None, part: str | None = None, *, plugins: bool = False
    ) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._package, self._part = package, part
        self._is_filling = False
        self._plugins = plugins
        if plugins:
            _extensible.append(self)

    def _filled(self) -> dict[str, T]:
        if self._package is not None:
            with _FILLING:
                # modules that are being imported may read the table, too
                if self._package is not None and not self._is_filling:
                    self._is_filling = True
                    _import_all(self._package, self._part)
                    self._package = None
        return self._entries

    def add(self, key: str, entry: T) -> T:
        """Add an entry; raise InternalError if the key is already registered."""
        if key in self._entries:
            raise InternalError(f"{self.kind} '{key}' is registered twice")
        self._entries[key] = entry
        return entry

    def setdefault(self, key: str, entry: T) -> T:
        """Return the entry of a key, adding `entry` if it is missing; do not import the package."""
        return self._entries.setdefault(key, entry)

    def register(self, key: str) -> Callable[[T], T]:
        """Return a decorator that registers the decorated object under `key`."""
        return lambda entry: self.add(key, entry)

    def get(self, key: str) -> T:
        """Return the entry of `key`; raise OptionError with the nearest names if it is unknown."""
        if key not in self:
            raise OptionError(unknown(self.kind, key, self._filled()))
        return self._filled()[key]

    def near(self, key: str) -> list[str]:
        """Return up to three registered keys that are similar to `key`."""
        return nearest(key, self._filled())

    def __contains__(self, key: object) -> bool:
        return key in self._filled() or (self._plugins and _load_plugins() and key in self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._filled()))

    def __len__(self) -> int:
        return len(self._filled())


@contextmanager
def recorded() -> Iterator[list[tuple[Registry[Any], str]]]:
    """Record the entries that a block adds to registries with plugins, to be passed to `remove`.

    If the block raises, they are removed at once.
    """
    before = {registry: {*registry} for registry in _extensible}
    added: list[tuple[Registry[Any], str]] = []

    def changes() -> Iterator[tuple[Registry[Any], str]]:
        for registry in _extensible:  # the block may import modules with further ones
            yield from ((registry, key) for key in registry if key not in before.get(registry, ()))

    try:
        yield added
    except BaseException:
        remove(changes())
        raise
    added += changes()


def remove(entries: Iterable[tuple[Registry[Any], str]]) -> None:
    """Remove entries that `recorded` returned."""
    for registry, key in list(entries):
        registry._entries.pop(key, None)


def _load_plugins() -> bool:
    """Load the entry points of installed packages once, and warn of those that fail; return True."""
    global _loaded  # noqa: PLW0603  (the state of this process)
    if not _loaded:
        _loaded = True
        import warnings
        from importlib.metadata import entry_points

        for entry in entry_points(group=_PLUGINS):
            try:
                with recorded():
                    entry.load()
            except Exception as error:  # the module of another package may raise anything
                warnings.warn(f"the entry point {_PLUGINS}: {entry.name} = {entry.value} fails: {error}", stacklevel=2)
    return True


def _import_all(package: str, part: str | None) -> None:
    import importlib.util
    import pkgutil

    for found in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda item: item.name):
        name = f"{package}.{found.name}"
        if part is None or not found.ispkg:
            importlib.import_module(name)
        elif importlib.util.find_spec(f"{name}.{part}") is not None:
            importlib.import_module(f"{name}.{part}")
