"""Names in C: identifiers that are legal, unique, bounded in length, and deterministic, and those of our own code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

LEVEL_VARIABLE = "MLFC_CPU"
"""Environment variable that selects a level instead of the processor's highest."""

LEVEL_SECTION = "mlfc."
"""Prefix of the ELF sections that contain the kernels of one level."""

PARALLEL_FOR = "mlfc_parallel_for"
"""Distributes pieces among threads."""
PARALLEL_FOR_IF_ASKED = "mlfc_parallel_for_if_asked"
"""The same, but runs all pieces on the caller's thread unless the program enabled threads."""
HEADERS: Mapping[str, str] = {PARALLEL_FOR: "mlfc_parallel.h", PARALLEL_FOR_IF_ASKED: "mlfc_pool.h"}
"""The header that declares each function."""
SOURCE = "mlfc_parallel_for.c"
"""The application's definition of the first; libraries for hosts use a thread pool instead."""

NAME_LIMIT = 80
_HASH_DIGITS = 16
_CUT = re.compile(rf"_[0-9a-f]{{{_HASH_DIGITS}}}$")

KEYWORDS = frozenset(
    {
        "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
        "char", "char16_t", "char32_t", "char8_t", "class", "co_await", "co_return", "co_yield", "compl", "concept",
        "const", "const_cast", "consteval", "constexpr", "constinit", "continue", "decltype", "default", "delete",
        "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "far", "float",
        "for", "fortran", "friend", "goto", "i386", "if", "inline", "int", "interrupt", "linux", "long", "main",
        "mutable", "namespace", "near", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq",
        "private", "protected", "public", "register", "reinterpret_cast", "requires", "restrict", "return", "short",
        "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
        "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "typeof", "typeof_unqual", "union",
        "unix", "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq",
    }
)  # fmt: skip
"""Keywords of C and C++ up to C23 and C++23, and names that some compilers predefine."""

_MACROS = re.compile(
    r"NULL|W?EOF|NAN|INFINITY|I|BUFSIZ|CHAR_BIT|CLOCKS_PER_SEC|EDOM|EILSEQ|ERANGE|HUGE_VAL[FL]?|L_tmpnam|NDEBUG"
    r"|complex|errno|imaginary|math_errhandling|stdin|stdout|stderr"
    r"|([SU]?CHAR|U?SHRT|U?INT[A-Z0-9_]*|U?LL?ONG|SIZE|PTRDIFF|SIG_ATOMIC|WCHAR|WINT)_(MIN|MAX)"
    r"|(FILENAME|FOPEN|MB_CUR|MB_LEN|RAND|TMP)_MAX"
    r"|(DBL|DECIMAL|EXIT|FE|FLT|FP|LC|LDBL|M|MATH|SEEK|SIG)_[A-Z0-9_]+|SIG[A-Z0-9]+|(PRI|SCN)[diouxX][A-Z0-9]+"
)
"""Macros of C's headers: a struct field of such a name fails to compile after the header is included."""


def bounded(name: str, limit: int = NAME_LIMIT) -> str:
    """Return `name`, or its first `limit` characters, ``_`` and 16 hexadecimal digits of its SHA-256.

    Bounding a name again does not change it.
    """
    if len(name) <= limit or (len(name) == limit + 1 + _HASH_DIGITS and _CUT.search(name)):
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{name[:limit]}_{digest}"


def sanitize(name: str) -> str:
    """Return a legal identifier of C and C++ made from `name`, of at most 97 characters.

    Every character outside ``[A-Za-z0-9]`` becomes ``_``, as in TVM's headers. Names that start with a digit or
    like a reserved identifier get the prefix ``n``; keywords and macros get the suffix ``_``.
    """
    text = _identifier(name)
    return f"{text}_" if text in KEYWORDS or _MACROS.fullmatch(text) else bounded(text)


def _identifier(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9]", "_", name) or "unnamed"
    return f"n{text}" if re.match(r"[0-9]|_[A-Z_]|_$", text) else text


def unique(names: Iterable[str], reserved: Iterable[str] = ()) -> list[str]:
    """Return a unique sanitized name for each of `names`; clashes get suffixes ``_1``, ``_2``, ...

    Names that differ only in case count as equal: macros derived from them would clash. `reserved` (lower case) are
    never used.
    """
    sanitized = [sanitize(name) for name in names]
    wanted = {name.lower() for name in sanitized}
    taken = set(reserved)
    result = []
    for name in sanitized:
        candidate, count = name, 0
        while candidate.lower() in taken or (count > 0 and candidate.lower() in wanted):
            count += 1
            candidate = f"{name}_{count}"
        taken.add(candidate.lower())
        result.append(candidate)
    return result


def names_in_tables(names: Iterable[str]) -> list[str]:
    """Return the tensor names for a module's tables, in which TVM's executors look them up.

    The executors replace each byte that is not an ASCII letter or digit by ``_``, and use the first of equal names; the
    others get suffixes ``_1``, ``_2``, ...
    """
    plain = [re.sub(rb"[^A-Za-z0-9]", b"_", name.encode("utf-8", "surrogatepass")).decode() or "_" for name in names]
    taken: set[str] = set()
    for index, name in enumerate(plain):
        count, wanted = 0, {*plain[index + 1 :]}
        while plain[index] in taken or (count and plain[index] in wanted):
            count += 1
            plain[index] = f"{name}_{count}"
        taken.add(plain[index])
    return plain


def module_name(name: str) -> str:
    """Return the form of a module's name that files, symbols and metadata share.

    It is lower case, because TVM's header lower-cases names and its sources do not, so modules with capitals in their
    names would not compile. Keywords are allowed, since the name is always part of a longer one: TVM's default is
    ``default``.
    """
    return bounded(_identifier(name).lower())


def level_function(module: str) -> str:
    """Return the name of the function that returns the level of a module's kernels, or NULL if unavailable."""
    return f"tvmgen_{module}_cpu"
