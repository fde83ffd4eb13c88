"""Wrong, truncated or malicious Relay text: one error with the location, what was found and what was expected."""

from __future__ import annotations

import base64
import json
import random
import sys

import numpy as np
import pytest

from mlfc.errors import TextError
from mlfc.relay import ir
from mlfc.relay.text import from_text, to_text
from mlfc.relay.text_source import MAX_CODE, MAX_NAME, MAX_TOKENS

HEAD = '#[version = "0.0.5"]\n'


def main(body: str) -> str:
    return f"{HEAD}def @main(%x: Tensor[(1, 4), float32]) {{ {body} }}"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "expected text format semantic version, found nothing"),
        ("def @main() { 1 }", "1:1", "found a `def`"),
        ('#[version = "0.1.0"]\n', "1:14", "invalid semantic version `0.1.0`"),
        (main("nn.foo(%x)"), "2:42", "operator `nn.foo` not found"),
        (main("nn.rel(%x)"), "2:42", "did you mean nn.relu"),
        (main("%y"), "2:42", "the variable %y is not defined"),
        (main("%0 = exp(%x); %0 = exp(%x); %0"), "2:56", "bound twice"),
        (main("exp(%x, axis=1)"), "2:42", "exp has no attribute axis"),
        (main("sum(%x, axis=1, axis=1)"), "2:58", "given twice"),
        (main("sum(axis=1, %x)"), "2:54", "arguments come before attributes"),
        (main("sum(%x, axis=9)"), "2:42", "axis 9 is outside"),
        (main("%x.0"), "2:44", "field 0 does not exist"),
        (main("%x(%x)"), "2:42", "cannot be called"),
        (main("@f(%x)"), "2:42", "the function @f is not defined"),
        (main("exp"), "2:42", "needs arguments in parentheses"),
        (main("0.5"), "2:42", "not a number of its dtype"),
        (main("300i8"), "2:42", "not a number of its dtype"),
        (main("1e9999999f17"), "2:42", "not a number of its dtype"),
        (main("99999999999999999999999"), "2:42", "not a number of its dtype"),
        (main("match (%x) { %x }"), "2:42", "`match` is not part of the subset"),
        (main("if (%x) { %x } else { %x }"), "2:42", "expected a condition of one bool, got Tensor"),
        (main("if (True) { %x } else { 1 }"), "2:42", "functions of an if return different types Tensor.* and int32"),
        (main("if (True) { %x }"), "2:59", "expected `else`, found `}`"),
        (main("reshape(%x, newshape=[n / 2])"), "2:66", "found `/`"),
        (main("reshape(%x, newshape=[nn.n])"), "2:64", "expected the name of a symbol"),
        (main("reshape(%x, newshape=[f(n, 2)])"), "2:64", "`f` of 2 is not a function of extents"),
        (main("reshape(%x, newshape=[max(n)])"), "2:64", "`max` of 1 is not a function"),
        (main("reshape(%x, newshape=[floordiv(n, 0)])"), "2:64", "divided by 0"),
        (main("reshape(%x, newshape=[0.5f * n])"), "2:64", "expected a whole number or a symbol"),
        (main(f"reshape(%x, newshape=[{' * '.join('n' * 17)}])"), "2:64", "more than 16 factors"),
        (main(f"reshape(%x, newshape=[{' + '.join('n' * 513)}])"), "2:64", "more than 1,024 words"),
        (main('fn (%p: Tensor[(n), int8], symbols="n=0..") { %p }'), "2:69", "only functions of the module"),
        (main("meta[relay.Constant][0]"), "2:42", "has no constant 0"),
        (main("sum(%x, axis=[0, 1 2])"), "2:59", "expected an integer of 64 bits"),
        (main("sum(%x, axis=[0,,1])"), "2:58", "expected an integer of 64 bits"),
        (main("sum(%x, axis=[9223372036854775808])"), "2:56", "expected an integer of 64 bits"),
        (main(f"sum(%x, axis=[0, -{'9' * 5000}])"), "2:59", "expected an integer of 64 bits"),
        (main("exp(%x"), "2:49", "expected .*, found `}`"),
        (main("exp(%x))"), "2:49", "expected .*, found `\\)`"),
        (main("fn (%p: float32) { %x }"), "2:61", "%x is not defined"),
        (f"{HEAD}def @main(%x) {{ %x }}", "2:11", "needs a type"),
        (f"{HEAD}def @main(%x: Tensor[(-n), float32]) {{ %x }}", "2:23", "expected an extent of at least 0, got -n"),
        (f'{HEAD}def @main(%x: int8, symbols="n") {{ %x }}', "2:21", "expected bounds such as n=1..32 or n=0"),
        (f"{HEAD}def @main(%x: int8, symbols=3) {{ %x }}", "2:21", "expected bounds such as .* got '3'"),
        (f'{HEAD}def @main(%x: int8, symbols="n=3..2") {{ %x }}', "2:21", "invalid bounds 3..2 for n"),
        (f'{HEAD}def @main(%x: int8, symbols="n=3..,n=3..") {{ %x }}', "2:21", "of n are given twice"),
        (f'{HEAD}def @f(symbols="n=0..") {{ 1 }} def @g(symbols="n=3..") {{ 1 }}', "2:38", "twice, and differ"),
        (f"{HEAD}def @f(defines=[3]) {{ 1 }}", "2:8", "expected the names of symbols"),
        (f"{HEAD}def @f(defines=[n]) {{ 1 }}", "2:1", "its body must be a tuple of more than 1 fields"),
        (f"{HEAD}def @f(defines=[n]) {{ (1, 1f) }}", "2:1", "expected one integer for the symbol n, got float32"),
        (f"{HEAD}def @f() {{ @f() }}", "2:12", "@f must be defined with the types"),
        (f"{HEAD}def @main(%x: Tensor[(1, 4), float31]) {{ %x }}", "2:30", "`float31` is not a type"),
        (f"{HEAD}def @main(%x: Tensor[({'9' * 300}), int8]) {{ %x }}", "2:23", "expected a whole number or a symbol"),
        (f"{HEAD}def @main(%x: Tensor[({'999999, ' * 9}1), int8]) {{ %x }}", "2:39", "exceeds the address space"),
        (f"{HEAD}def @main(%x: float32, %x: float32) {{ %x }}", "2:24", "given twice"),
        (f"{HEAD}def @main(%x: float32) -> int8 {{ %x }}", "2:27", "its body is of float32"),
        (f"{HEAD}def @f() {{ 1 }} def @f() {{ 1 }}", "2:20", "defined twice"),
        (f"{HEAD}/* /* */", "2:1", "this comment does not end"),
        (f"{HEAD}$", "2:1", "`\\$` is not allowed here"),
        (f"{HEAD}def @main() {{ 1 ", "2:15", "found the end of the text"),
    ],
)
def test_points_at_the_fault(text: str, place: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as caught:
        from_text(text, "net.relay")
    assert caught.value.place == f"net.relay:{place}"
    assert "^" in caught.value.cause


def test_shows_the_line_with_a_caret_under_the_fault() -> None:
    with pytest.raises(TextError) as caught:
        from_text(main("sun(%x)"), "net.relay")
    assert str(caught.value).splitlines() == [
        "net.relay:2:42: operator `sun` not found",
        "  |",
        "2 | def @main(%x: Tensor[(1, 4), float32]) { sun(%x) }",
        "  |                                          ^^^",
        "  = help: did you mean sum or sin?",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "(" * 100_000, "[" * 100_000, "exp(" * 100_000, "fn () {" * 50_000, "exp(%x, a=" + "[" * 100_000,
        "%x" + ".0" * 100_000, "/*" * 100_000, "-" * 100_000, "%x" + " + %x" * 30_000 + " +",
    ],
)  # fmt: skip
def test_depth_does_not_overflow_the_stack(body: str) -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(TextError):
        from_text(main(body))
    assert sys.getrecursionlimit() == limit


def test_a_long_chain_of_infix_operators_is_no_depth() -> None:
    assert "add(%299, %x)" in to_text(from_text(main("%x" + " + %x" * 301)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (" " * MAX_CODE + "%x", "exceeds 2,097,152 characters"),
        ("%x" + " + %x" * (MAX_TOKENS // 2), "exceeds 60,000 words"),
        (f"%{'x' * MAX_NAME}", "a word exceeds 65,536 characters"),
        (f'exp(%x, a="{"x" * MAX_NAME}")', "a word exceeds 65,536 characters"),
    ],
)
def test_what_is_too_long_is_refused(body: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        from_text(main(body))


def test_a_text_may_use_up_its_limits() -> None:
    head = len(HEAD.splitlines()[0].split()) + 40
    count = (MAX_TOKENS - head) // 2
    (parameter,) = from_text(main("%x" + " + %x" * count)).main.params
    assert parameter.name == "x"
    from_text(main("sum(%x, axis=[1]) // " + "x" * (MAX_CODE - 200) + "\n"))


@pytest.mark.parametrize("last", ["%59", "exp(%59)", "%59.0.1.7", "%59(%x)", "let %y: int8 = %59; %y"])
def test_tuples_of_tuples_may_not_double_for_ever(last: str) -> None:
    doubled = "".join(f"%{index + 1} = (%{index}, %{index}); " for index in range(59))
    with pytest.raises(TextError, match=r"2:\d+: this tuple .* more than 4,096 fields or 64 levels"):
        from_text(main(f"%0 = (%x, %x); {doubled}{last}"))


def test_tuples_may_not_nest_without_end() -> None:
    deeper = "".join(f"%{index + 1} = (%{index},); " for index in range(2_000))
    with pytest.raises(TextError, match="or 64 levels"):
        from_text(main(f"%0 = (%x,); {deeper}%2000"))


def constants_text() -> tuple[str, dict[str, object]]:
    text = to_text(ir.IRModule({"main": ir.Function((), ir.const(np.arange(4, dtype=np.int8)))}))
    head, metadata = text.split("#[metadata]")
    return f"{head}#[metadata]", json.loads(metadata)


def spoiled(**changes: object) -> str:
    head, metadata = constants_text()
    return head + json.dumps({**metadata, **changes})


HUGE = base64.b64decode(str(constants_text()[1]["b64ndarrays"][0]))  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        constants_text()[0],
        constants_text()[0] + "{",
        constants_text()[0] + "[]",
        constants_text()[0] + "[" * 100_000,
        spoiled(root=10**9),
        spoiled(root=-1),
        spoiled(root=None),
        spoiled(nodes={}),
        spoiled(nodes=[]),
        spoiled(b64ndarrays=[]),
        spoiled(attrs=[0] * 500_001),
        spoiled(b64ndarrays=["!!!"]),
        spoiled(b64ndarrays=[7]),
        spoiled(b64ndarrays=[base64.b64encode(HUGE[:-1]).decode()]),
        spoiled(b64ndarrays=[base64.b64encode(HUGE[:32] + b"\xff" * 7 + b"\x7f" + HUGE[40:]).decode()]),
    ],
)
def test_broken_metadata_is_refused(text: str) -> None:
    with pytest.raises(TextError, match=r"<text>:\d+.*metadata section"):
        from_text(text)


def test_no_mutation_escapes_as_another_error() -> None:
    good = main("%0 = fn (%p: float32, Primitive=1) { exp(%p) }; (sum(%x, axis=[1]), %x * 2f, 1i64).0 + %0(1f)")
    from_text(good)
    chance = random.Random(3)
    letters = [*sorted(set(good)), "\x00", "é", '"', "\\", "#[metadata]", "/*"]
    refused = 0
    for _ in range(400):
        at = chance.randrange(len(HEAD), len(good))
        kind = chance.randrange(3)
        piece = chance.choice(letters)
        text = good[:at] + (piece if kind else "") + good[at + (kind != 1) :]
        try:
            from_text(text)
        except TextError:
            refused += 1
    assert refused > 100
