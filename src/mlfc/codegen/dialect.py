"""What languages for devices spell differently; `opencl` and `cuda` are the two that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mlfc.codegen.prelude import helper_source

Helper = tuple[tuple[str, ...], str]


@dataclass(frozen=True, eq=False)
class Dialect:
    """A language of kernels, close to C.

    Attributes
    ----------
    name : str
    kernel_head : callable ``(name, parameters, block) -> str``
        The head of a kernel of work-groups of `block`.
    parameter_space, shared_space, private_space : str
        What stands before the type of a pointer parameter, of an array that a group shares, of one that an item has.
    restrict : str
        Behind the ``*`` of a pointer to what no other pointer reaches.
    group_place, item_place : callable ``axis -> str``
        The place of the group in the grid, of the item in its group.
    barrier : str
    vector_type : callable ``(element dtype, lanes) -> str``
    vector_load : callable ``(type, address) -> str``
    vector_store : callable ``(type, address, value) -> str``
    splat : callable ``(type, lanes, value) -> str``
    word : callable ``address -> str``
        Four bytes as one int32.
    product : callable ``(dtype, a, b) -> str``, optional
        A product that stays one where products and sums must not become one operation, if that takes more than
        `separate_products`.
    separate_products : str
        A line that says so for a file; empty where `product` does.
    unroll : str
        Before a loop that is to be spelled out; empty where compilers do so unasked.
    math_suffix : str
        Behind the names of functions of float.
    function : str
        What stands in place of C's ``static inline``.
    helpers : mapping of str to Helper
        Those that are not C's.
    prelude : callable ``(dtypes) -> lines``
        First lines of a file that uses these dtypes.
    shares_prelude : bool
        Whether all kernels of a text stand behind one prelude; else each is a text of its own.
    """

    name: str
    kernel_head: Callable[[str, str, tuple[int, int, int]], str]
    parameter_space: str
    shared_space: str
    private_space: str
    restrict: str
    group_place: Callable[[int], str]
    item_place: Callable[[int], str]
    barrier: str
    vector_type: Callable[[str, int], str]
    vector_load: Callable[[str, str], str]
    vector_store: Callable[[str, str, str], str]
    splat: Callable[[str, int, str], str]
    word: Callable[[str], str]
    product: Callable[[str, str, str], str] | None
    separate_products: str
    unroll: str
    math_suffix: str
    function: str
    helpers: Mapping[str, Helper]
    prelude: Callable[[frozenset[str]], list[str]]
    shares_prelude: bool

    def helper_texts(self, keys: Iterable[str]) -> list[str]:
        """Return the texts of helpers and of what they call, each behind what it calls."""
        ordered: dict[str, str] = {}

        def visit(key: str) -> None:
            if key not in ordered:
                used, text = self.helpers.get(key) or helper_source(key)
                for other in used:
                    visit(other)
                ordered[key] = text.replace("static inline", self.function)

        for key in sorted(set(keys)):
            visit(key)
        return list(ordered.values())
