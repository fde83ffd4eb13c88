"""The instructions on lists, as closures like those of `steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlfc.runtime.executors.vm.failures import Code, Fault
from mlfc.runtime.executors.vm.memory import ENTRY_BYTES, Items


def _position(index: int, count: int, end: int) -> int:
    """Return a position that may be counted from the end."""
    if not -count <= index < end:
        raise Fault(Code.INDEX, index, count)
    return index + count if index < 0 else index


def _list(following: int, d: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        r[d] = Items(r[0].account)
        return following

    return step


def _append(following: int, items: int, tensor: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        r[0].account.take(ENTRY_BYTES)
        r[items].tensors.append(r[tensor])
        return following

    return step


def _insert(following: int, items: int, index: int, tensor: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        tensors = r[items].tensors
        position = _position(r[index], len(tensors), len(tensors) + 1)
        r[0].account.take(ENTRY_BYTES)
        tensors.insert(position, r[tensor])
        return following

    return step


def _erase(following: int, items: int, index: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        tensors = r[items].tensors
        del tensors[_position(r[index], len(tensors), len(tensors))]
        r[0].account.used -= ENTRY_BYTES
        return following

    return step


def _get(following: int, d: int, items: int, index: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        tensors = r[items].tensors
        r[d] = tensors[_position(r[index], len(tensors), len(tensors))]
        return following

    return step


def _length(following: int, d: int, items: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        r[d] = len(r[items].tensors)
        return following

    return step


def _list_move(following: int, d: int, items: int) -> Callable[[list[Any]], int]:
    def step(r: list[Any]) -> int:
        if d != items:
            r[d] = Items(r[0].account, r[items].tensors)
        return following

    return step


LIST_STEPS: dict[str, Callable[..., Callable[[list[Any]], int]]] = {
    "list": _list,
    "append": _append,
    "insert": _insert,
    "erase": _erase,
    "get": _get,
    "length": _length,
    "list_move": _list_move,
}
"""What makes the step of each instruction, from the number of the next one and the registers."""
