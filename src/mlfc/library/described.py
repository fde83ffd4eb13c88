"""What libraries have beside the code of compiled modules: entries for callers, and what loaders must know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from mlfc.codegen.abi import library_files
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.unit import Unit
from mlfc.library.build import Beside
from mlfc.runtime.modules.description import DESCRIPTION_SYMBOL
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface

_FILE = "src/mlfc_description.c"


def beside_code(
    units: Sequence[Unit], codes: Sequence[GeneratedCode], descriptions: Mapping[str, ModuleInterface]
) -> Beside:
    """Return what `HostLibrary` asks for what lies beside its code.

    Parameters
    ----------
    units, codes
        Of the modules in the library.
    descriptions : mapping of str to ModuleInterface
        What each of them is, by name: `Factory.interface`.
    """

    def beside(abi: Sequence[str], files: Mapping[str, Data]) -> Mapping[str, Data]:
        return {**library_files(units, codes, abi, files), _FILE: _description(descriptions)}

    return beside


def _description(modules: Mapping[str, ModuleInterface]) -> bytes:
    text = json.dumps({"modules": {name: item.to_json() for name, item in modules.items()}}, sort_keys=True).encode()
    # numbers, because C promises string literals of no more than 4,095 characters
    numbers = ",".join(map(str, (*text, 0)))
    return (
        f"extern const char {DESCRIPTION_SYMBOL}[{len(text) + 1}];\n"
        f"const char {DESCRIPTION_SYMBOL}[{len(text) + 1}] = {{{numbers}}};\n"
    ).encode()
