"""What the parser says of text that is not a graph: each message whole."""

from __future__ import annotations

import re

import pytest

from graphdist.ir.errors import ParseError
from graphdist.ir.parser import parse

GOOD = """\
graph f on 2 replicas, stage placed
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true}
(%w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %y = jax.add(%x, 1.0:f32) {axis=0} : f32[4] per_replica
  %c = cond(0:i32, %y) : f32[4] per_replica
    branch(%a: f32[4] per_replica) {
      return %a
    }
  return %w -> @w, per_replica %c
}"""


def message(text: str, opaques: tuple[object, ...] = ()) -> str:
    """Return what the parser says of a text."""
    with pytest.raises(ParseError) as caught:
        parse(text, opaques)
    return str(caught.value)


def test_the_text_that_the_tests_break_is_good() -> None:
    parse(GOOD)


CASES = {
    "undefined": (
        "%x, 1.0:f32",
        "%z, 1.0:f32",
        "line 4, column 16: %z is not defined before this, or not in this graph\n"
        "    %y = jax.add(%z, 1.0:f32) {axis=0} : f32[4] per_replica\n"
        "                 ^",
    ),
    "of an outer graph": (
        "return %a",
        "return %x",
        "line 7, column 14: %x is not defined before this, or not in this graph\n"
        "    return %x\n"
        "           ^",
    ),
    "defined twice": (
        "%c = cond",
        "%x = cond",
        "line 5, column 3: %x is defined twice\n"
        "    %x = cond(0:i32, %y) : f32[4] per_replica\n"
        "    ^",
    ),
    "no operation": (
        "cond(",
        "conf(",
        "line 5, column 8: no operation 'conf'; did you mean cond?\n"
        "    %c = conf(0:i32, %y) : f32[4] per_replica\n"
        "         ^",
    ),
    "type of another distribution": (
        "%c = cond(0:i32, %y) : f32[4] per_replica",
        "%c = cond(0:i32, %y) : f32[4]",
        "line 5, column 3: %c is f32[4] per_replica by the rule of cond, the text says f32[4]\n"
        "    %c = cond(0:i32, %y) : f32[4]\n"
        "    ^",
    ),
    "type of another shape": (
        "%c = cond(0:i32, %y) : f32[4] per_replica",
        "%c = cond(0:i32, %y) : f32[5] per_replica",
        "line 5, column 3: %c is f32[4] per_replica by the rule of cond, the text says "
        "f32[5] per_replica\n"
        "    %c = cond(0:i32, %y) : f32[5] per_replica\n"
        "    ^",
    ),
    "refused by the rule": (
        "0:i32, %y",
        "0:i8, %y",
        "line 5, column 3: cond: the index is i8[] mirrored, not i32[]\n"
        "    %c = cond(0:i8, %y) : f32[4] per_replica\n"
        "    ^",
    ),
    "parameter missing": (
        "jax.add(%x, 1.0:f32) {axis=0}",
        "own_slice(%x) {axis=0}",
        "line 4, column 3: own_slice lacks its parameter 'group_size': int\n"
        "    %y = own_slice(%x) {axis=0} : f32[4] per_replica\n"
        "    ^",
    ),
    "parameter of another operation": (
        "jax.add(%x, 1.0:f32) {axis=0}",
        "scale(%x) {factor=2, axis=0}",
        "line 4, column 3: scale has no parameter 'axis'; its parameters: factor\n"
        "    %y = scale(%x) {factor=2, axis=0} : f32[4] per_replica\n"
        "    ^",
    ),
    "parameter of another type": (
        "jax.add(%x, 1.0:f32) {axis=0}",
        'concatenate(%x) {axis="0"}',
        "line 4, column 3: concatenate takes axis as int, not '0'\n"
        '    %y = concatenate(%x) {axis="0"} : f32[4] per_replica\n'
        "    ^",
    ),
    "graphs a rule chokes on": (
        "cond(0:i32, %y)",
        "while(%y) {num_cond_consts=0, num_body_consts=0}",
        "line 5, column 3: while does not take these parameters or graphs: "
        "ValueError('not enough values to unpack (expected 2, got 1)')\n"
        "    %c = while(%y) {num_cond_consts=0, num_body_consts=0} : f32[4] per_replica\n"
        "    ^",
    ),
    "no branches": (
        """cond(0:i32, %y) : f32[4] per_replica
    branch(%a: f32[4] per_replica) {
      return %a
    }""",
        "cond(0:i32, %y) : f32[4] per_replica",
        "line 5, column 3: cond: there are no branches\n"
        "    %c = cond(0:i32, %y) : f32[4] per_replica\n"
        "    ^",
    ),
    "results and types": (
        "{axis=0} : f32[4] per_replica",
        "{axis=0}",
        "line 4, column 3: results: 1, types: 0\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=0}\n"
        "    ^",
    ),
    "results of the rule": (
        "%c = cond(0:i32, %y) : f32[4] per_replica",
        "%c, %d = cond(0:i32, %y) : f32[4] per_replica, f32[]",
        "line 5, column 3: results of cond: 1, named: 2\n"
        "    %c, %d = cond(0:i32, %y) : f32[4] per_replica, f32[]\n"
        "    ^",
    ),
    "literal of another kind": (
        "1.0:f32",
        "1.5:i8",
        "line 4, column 20: 1.5 is not a number of dtype i8\n"
        "    %y = jax.add(%x, 1.5:i8) {axis=0} : f32[4] per_replica\n"
        "                     ^",
    ),
    "literal too large": (
        "1.0:f32",
        "128:i8",
        "line 4, column 20: 128 is not a number of dtype i8\n"
        "    %y = jax.add(%x, 128:i8) {axis=0} : f32[4] per_replica\n"
        "                     ^",
    ),
    "not a literal": (
        "1.0:f32",
        '"1":f32',
        "line 4, column 20: expected a value or a literal such as 0.5:f32\n"
        '    %y = jax.add(%x, "1":f32) {axis=0} : f32[4] per_replica\n'
        "                     ^",
    ),
    "unbalanced": (
        "{axis=0}",
        "{axis=(0}",
        "line 4, column 37: expected ',', found '}'\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=(0} : f32[4] per_replica\n"
        "                                      ^",
    ),
    "no value": (
        "{axis=0}",
        "{axis=zero}",
        "line 4, column 35: expected a value, found 'zero'\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=zero} : f32[4] per_replica\n"
        "                                    ^",
    ),
    "given twice": (
        "{axis=0}",
        "{axis=0, axis=0}",
        "line 4, column 38: 'axis' is given twice\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=0, axis=0} : f32[4] per_replica\n"
        "                                       ^",
    ),
    "array of another size": (
        "{axis=0}",
        "{axis=array<f32[3]: 1.0>}",
        "line 4, column 35: elements for f32[3]: 1, not 3\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=array<f32[3]: 1.0>} : f32[4] per_replica\n"
        "                                    ^",
    ),
    "no dtype": (
        "{axis=0}",
        "{axis=dtype<f33>}",
        "line 4, column 35: data type 'f33' not understood\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=dtype<f33>} : f32[4] per_replica\n"
        "                                    ^",
    ),
    "opaque": (
        "{axis=0}",
        "{axis=<1: Mode>}",
        "line 4, column 35: <1: Mode> is not among the 1 opaque parameters given\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=<1: Mode>} : f32[4] per_replica\n"
        "                                    ^",
    ),
    "bad string": (
        "{axis=0}",
        r'{axis="\q"}',
        'line 4, column 35: "\\q" is not a string: what is in the quotes is written as in JSON\n'
        '    %y = jax.add(%x, 1.0:f32) {axis="\\q"} : f32[4] per_replica\n'
        "                                    ^",
    ),
    "undeclared variable": (
        "{axis=0}",
        "{axis=@v}",
        "line 4, column 35: variable 'v' is not declared\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=@v} : f32[4] per_replica\n"
        "                                    ^",
    ),
    "attribute of a variable": (
        ", assigned=true",
        ", assigned=1",
        "line 2, column 12: a variable has no assigned=1\n"
        '    variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", '
        "trainable=true, assigned=1}\n"
        "             ^",
    ),
    "inputs of variables": (
        " = @w",
        "",
        "line 3, column 1: at stage placed the first inputs belong to @w, here to no variable\n"
        "    (%w: f32[4] mirrored, %x: f32[4] per_replica) {\n"
        "    ^",
    ),
    "outputs of variables": (
        "%w -> @w, ",
        "",
        "line 3, column 1: at stage placed the first outputs belong to @w, here to no variable\n"
        "    (%w: f32[4] mirrored = @w, %x: f32[4] per_replica) {\n"
        "    ^",
    ),
    "outermost only": (
        "return %a",
        "return per_replica %a",
        "line 6, column 5: a nested graph has no variables and no per-replica outputs\n"
        "    branch(%a: f32[4] per_replica) {\n"
        "    ^",
    ),
    "no replicas": (
        "on 2",
        "on 0",
        "line 1, column 12: expected a number of replicas\n"
        "    graph f on 0 replicas, stage placed\n"
        "               ^",
    ),
    "no stage": (
        "stage placed",
        "stage two",
        "line 1, column 30: no stage 'two': it is one of logical, placed, spmd\n"
        "    graph f on 2 replicas, stage two\n"
        "                                 ^",
    ),
    "no such character": (
        "= jax.add",
        "= $jax.add",
        "line 4, column 8: expected a word, found '$'\n"
        "    %y = $jax.add(%x, 1.0:f32) {axis=0} : f32[4] per_replica\n"
        "         ^",
    ),
    "end of the line": (
        "%c = cond(0:i32, %y) : f32[4] per_replica",
        "%c = cond(0:i32",
        "line 5, column 18: expected ',', found the end of the line\n"
        "    %c = cond(0:i32\n"
        "                   ^",
    ),
    "no dtype of a value": (
        "%a: f32[4]",
        "%a: f92[4]",
        "line 6, column 16: no dtype 'f92'\n"
        "    branch(%a: f92[4] per_replica) {\n"
        "               ^",
    ),
    "no dtype of a literal": (
        "1.0:f32",
        "1:i99999999999",
        "line 4, column 20: no dtype 'i99999999999'\n"
        "    %y = jax.add(%x, 1:i99999999999) {axis=0} : f32[4] per_replica\n"
        "                     ^",
    ),
    "a number too large for its dtype": (
        "1.0:f32",
        f"1{'0' * 399}:f32",
        "line 4, column 20: int too large to convert to float\n"
        f"    %y = jax.add(%x, 1{'0' * 382}\n"
        "                     ^",
    ),
    "too many elements": (
        "%a: f32[4]",
        "%a: f32[4294967296,4294967296]",
        "line 6, column 16: a value of 2**63 elements or more\n"
        "    branch(%a: f32[4294967296,4294967296] per_replica) {\n"
        "               ^",
    ),
    "too many dimensions": (
        "%a: f32[4]",
        f"%a: f32[{','.join('1' * 65)}]",
        "line 6, column 16: 65 dimensions; the limit is 64\n"
        f"    branch(%a: f32[{','.join('1' * 65)}] per_replica) {{\n"
        "               ^",
    ),
    "too many replicas": (
        "on 2",
        "on 2000000",
        "line 1, column 12: replicas: 2000000; from 1 to 1048576 are allowed\n"
        "    graph f on 2000000 replicas, stage placed\n"
        "               ^",
    ),
    "no replicas in a group": (
        "jax.add(%x, 1.0:f32) {axis=0}",
        'all_reduce(%x) {reducer="sum", group_size=-1}',
        "line 4, column 3: group_size: -1; from 1 to 1048576 are allowed\n"
        '    %y = all_reduce(%x) {reducer="sum", group_size=-1} : f32[4] per_replica\n'
        "    ^",
    ),
    "what a terminal would obey": (
        "{axis=0}",
        "{axis=<9: \x1b[2J>}",
        "line 4, column 35: <9: ?[2J> is not among the 1 opaque parameters given\n"
        "    %y = jax.add(%x, 1.0:f32) {axis=<9: ?[2J>} : f32[4] per_replica\n"
        "                                    ^",
    ),
    "after the end": (
        "per_replica %c\n}",
        "per_replica %c\n}\n}",
        "line 11, column 1: expected the end of the text, found '}'\n"
        "    }\n"
        "    ^",
    ),
    "before the end": (
        "  return %w -> @w, per_replica %c\n}",
        "",
        "line 8, column 6: the text ends here, inside a graph\n"
        "    }\n"
        "     ^",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_text_is_refused_with_its_line_and_column(case: str) -> None:
    good, bad, expected = CASES[case]
    assert GOOD.count(good) == 1
    assert message(GOOD.replace(good, bad), (None,)) == expected


def test_a_variable_is_declared_once() -> None:
    header, variable, rest = GOOD.split("\n", 2)
    assert message("\n".join([header, variable, variable, rest])).splitlines()[0] == (
        "line 3, column 12: variable 'w' is declared twice"
    )


@pytest.mark.parametrize("text", ["", "\n\n# nothing\n"])
def test_no_graph_at_all(text: str) -> None:
    assert message(text) == "the text has no graph in it"


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("axis=0", f"axis={'(' * 5000}", "more than 64 values or graphs inside each other"),
        ("axis=0", f"axis={'{a=' * 5000}", "more than 64 values or graphs inside each other"),
        ("axis=0", f"axis={'complex(' * 5000}", "more than 64 values or graphs"),
        ("    return %a\n", "    cond(0:i32)\n b() {\n" * 5000, "more than 64 values"),
        ("axis=0", f"axis={'9' * 5000}", "a number of 5,000 digits; the limit is 400"),
        ("%a: f32[4]", f"%a: f32[{'9' * 5000}]", "a number of 5,000 digits"),
        ("axis=0", f"axis=<{'9' * 5000}: x>", "a number of 5,000 digits"),
        ("on 2 ", f"on {'9' * 5000} ", "a number of 5,000 digits"),
        (
            "axis=0",
            f"axis={'0, ' * 2**19}",
            "line 4 has 1,572,9.. characters; the limit is 1,048,576",
        ),
        ("axis=0", "axis=" + '\\"' * 2**18, "expected a value"),
    ],
)
def test_text_is_read_within_limits(good: str, bad: str, says: str) -> None:
    assert GOOD.count(good) == 1
    said = message(GOOD.replace(good, bad))
    assert re.search(says, said)
    assert len(said) < 2000


def test_values_inside_each_other_are_read() -> None:
    depth = 60
    parse(GOOD.replace("axis=0", f"axis={'(' * depth}0{',)' * depth}"))
    with pytest.raises(ParseError, match="more than 64"):
        parse(GOOD.replace("axis=0", f"axis={'(' * 65}0{',)' * 65}"))


def test_a_longer_text_is_read_if_it_is_allowed() -> None:
    with pytest.raises(ParseError, match=f"the text has {len(GOOD)} characters; the limit is 100"):
        parse(GOOD, max_characters=100)
    parse(GOOD, max_characters=len(GOOD))


def test_a_text_that_is_a_part_of_another_is_counted_from_its_line() -> None:
    with pytest.raises(ParseError, match="line 103, column 1"):
        parse(GOOD.replace(" = @w", ""), first_line=101)


def test_any_cut_is_refused_and_nothing_else_is_raised() -> None:
    for end in range(len(GOOD)):
        with pytest.raises(ParseError):
            parse(GOOD[:end])
    for position in range(len(GOOD)):
        for other in ("", "(", "=", '"', "7", "\n", "{", ">"):
            try:
                parse(GOOD[:position] + other + GOOD[position + 1 :])
            except ParseError:
                continue
