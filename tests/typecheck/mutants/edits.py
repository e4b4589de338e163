"""Edits of one expression, as somebody who mistakes an axis makes them.

An edit takes a node of a syntax tree and yields what may stand in its place, each with a word for it. `mutants_of`
applies every edit to every expression in the bodies of a program's functions, one at a time.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator

Edits = Iterator[tuple[str, ast.expr]]
AXIS_NAMES = ("axis", "dim", "axes", "in_axes", "out_axes", "axis1", "axis2")
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "var", "std", "argmax", "argmin", "logsumexp", "softmax", "norm")
OF_AXES = {*REDUCTIONS, "log_softmax", "cumsum", "take_along_axis", "squeeze", "expand_dims", "concatenate", "stack"}
SHAPED = {"reshape", "transpose", "swapaxes", "moveaxis", "broadcast_to"}


def _number(node: ast.AST) -> int | None:
    """The integer that an expression writes."""
    try:
        value = ast.literal_eval(node)  # pyright: ignore[reportArgumentType]  # anything else raises
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if type(value) is int else None


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _with(node: ast.expr, **fields: object) -> ast.expr:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def axis_numbers(node: ast.expr) -> Edits:
    """Another axis: `axis=1` for `axis=0`, in keywords and where an axis is given by place."""
    if not isinstance(node, ast.Call):
        return
    for place, keyword in enumerate(node.keywords):
        number = _number(keyword.value)
        if keyword.arg in AXIS_NAMES and number is not None:
            for new_axis in {-1: (-2, 0), 0: (1,), 1: (0, 2), 2: (1,), -2: (-1,)}.get(number, (0,)):
                new = ast.keyword(keyword.arg, ast.Constant(new_axis))
                yield (
                    f"{keyword.arg}={new_axis} for {number}",
                    _with(node, keywords=[*node.keywords[:place], new, *node.keywords[place + 1 :]]),
                )
    places = SHAPED - {"reshape", "broadcast_to"} | OF_AXES
    for place, argument in enumerate(node.args) if _name(node.func) in places else ():
        number = _number(argument)
        if number is not None:
            new_axis = {-1: -2, 0: 1, 1: 0, 2: 1, -2: -1}.get(number, 0)
            yield (
                f"{new_axis} for axis {number}",
                _with(node, args=[*node.args[:place], ast.Constant(new_axis), *node.args[place + 1 :]]),
            )


def swapped_arguments(node: ast.expr) -> Edits:
    """Two neighbours among the arguments of a call, or the numbers of a shape, the other way round."""
    if isinstance(node, ast.Call):
        first = int("random" in ast.unparse(node.func))  # nobody mistakes a key for a shape
        for place in range(first, len(node.args) - 1):
            earlier, later = node.args[place : place + 2]
            if not isinstance(earlier, ast.Starred) and not isinstance(later, ast.Starred):
                swapped = [*node.args[:place], later, earlier, *node.args[place + 2 :]]
                yield f"arguments {place} and {place + 1} swapped", _with(node, args=swapped)
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        for place in range(len(node.elts) - 1):
            earlier, later = node.elts[place : place + 2]
            if not isinstance(earlier, ast.Starred) and not isinstance(later, ast.Starred):
                swapped = [*node.elts[:place], later, earlier, *node.elts[place + 2 :]]
                yield f"items {place} and {place + 1} swapped", _with(node, elts=swapped)


def transposes(node: ast.expr) -> Edits:
    """`x.T` without the transposition, and with one that is too many."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT") and isinstance(node.ctx, ast.Load):
        yield "no transposition", node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield "operands swapped", _with(node, left=node.right, right=node.left)
        for side in ("left", "right"):
            operand = getattr(node, side)
            if not (isinstance(operand, ast.Attribute) and operand.attr == "T"):
                yield f"{side} transposed", _with(node, **{side: ast.Attribute(operand, "T", ast.Load())})


def einsum_letters(node: ast.expr) -> Edits:
    """Another letter in the formula of an einsum: swapped in the result, dropped from it, swapped in an operand."""
    if not (isinstance(node, ast.Call) and "einsum" in _name(node.func) and node.args):
        return
    formula = node.args[0]
    if not (isinstance(formula, ast.Constant) and isinstance(formula.value, str) and "->" in formula.value):
        return
    *operands, result = formula.value.replace("->", ",").replace(" ", "").split(",")
    written = list(_formulas(operands, result))
    for new in dict.fromkeys(one for one in written if one != formula.value.replace(" ", "")):
        yield f"{new} for {formula.value}", _with(node, args=[ast.Constant(new), *node.args[1:]])


def _formulas(operands: list[str], result: str) -> Iterator[str]:
    if len(result) > 1 and "." not in result:
        yield f"{','.join(operands)}->{result[1]}{result[0]}{result[2:]}"
        yield f"{','.join(operands)}->{result[:-1]}"
    for place, operand in enumerate(operands):
        if len(operand) > 1 and "." not in operand:
            swapped = [*operands[:place], operand[:-2] + operand[-1] + operand[-2], *operands[place + 1 :]]
            yield f"{','.join(swapped)}->{result}"


def new_axes(node: ast.expr) -> Edits:
    """`x[:, None]` with the new axis elsewhere, or without it."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)):
        return
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for place, item in enumerate(items):
        if isinstance(item, ast.Constant) and item.value is None:
            rest = [*items[:place], *items[place + 1 :]]
            yield "without a new axis", _subscript(node, rest or [ast.Slice()])
            new_place = place - 1 if place else 1
            if rest:
                moved = [*rest[:new_place], item, *rest[new_place:]]
                yield "the new axis elsewhere", _subscript(node, moved)


def _subscript(node: ast.Subscript, items: list[ast.expr]) -> ast.expr:
    return _with(node, slice=items[0] if len(items) == 1 else ast.Tuple(items, ast.Load()))


def indices(node: ast.expr) -> Edits:
    """A slice that begins or ends one further, an index that keeps its axis, another entry of a shape."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)):
        return
    number = _number(node.slice)
    if number is not None and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        new_axis = {0: 1, 1: 0, -1: -2, -2: -1}.get(number, 0)
        yield f"shape[{new_axis}] for [{number}]", _with(node, slice=ast.Constant(new_axis))
        return
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for place, item in enumerate(items):
        if isinstance(item, ast.Slice):
            for side in ("lower", "upper"):
                bound = getattr(item, side)
                if bound is not None:
                    further = ast.BinOp(bound, ast.Sub() if _number(bound) in (-1, -2) else ast.Add(), ast.Constant(1))
                    new = ast.copy_location(ast.Slice(item.lower, item.upper, item.step), item)
                    setattr(new, side, further)
                    yield f"{side} bound off by one", _subscript(node, [*items[:place], new, *items[place + 1 :]])
        elif isinstance(node.slice, ast.Tuple) and _number(item) is not None:
            whole = ast.Slice()
            yield "an index that takes all", _subscript(node, [*items[:place], whole, *items[place + 1 :]])


def kept_axes(node: ast.expr) -> Edits:
    """A reduction that keeps its axis, one that does not keep it, and none at all."""
    if not (isinstance(node, ast.Call) and _name(node.func) in REDUCTIONS[:-2]):
        return
    named = {argument.arg: argument for argument in node.keywords}
    if "keepdims" in named:
        yield (
            "without keepdims",
            _with(node, keywords=[argument for argument in node.keywords if argument.arg != "keepdims"]),
        )
    elif "axis" in named:
        keyword = ast.keyword("keepdims", ast.Constant(True))
        yield "with keepdims", _with(node, keywords=[*node.keywords, keyword])
        yield "over all axes", _with(node, keywords=[argument for argument in node.keywords if argument.arg != "axis"])
    if isinstance(node.func, ast.Attribute) and _name(node.func.value) not in ("jnp", "jax", "nn", "special"):
        yield "without the reduction", node.func.value


def joined(node: ast.expr) -> Edits:
    """`stack` for `concatenate`, and the other way round."""
    counterparts = {"stack": "concatenate", "concatenate": "stack"}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in counterparts:
        name = counterparts[node.func.attr]
        yield f"{name} for {node.func.attr}", _with(node, func=_with(node.func, attr=name))


EDITS: tuple[Callable[[ast.expr], Edits], ...] = (
    axis_numbers,
    swapped_arguments,
    transposes,
    einsum_letters,
    new_axes,
    indices,
    kept_axes,
    joined,
)


def mutants_of(source: str, skipped: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Each mutant of a program: what was done, with its line, and the text.

    Args:
        source: the program.
        skipped: names of functions that are left alone.
    """
    for number in itertools.count():
        tree = ast.parse(source)
        nodes = list(_expressions(tree, skipped))
        if number >= len(nodes):
            return
        owner, field, place = nodes[number]
        node = getattr(owner, field) if place is None else getattr(owner, field)[place]
        for edit in EDITS:
            for word, new in edit(node):
                ast.copy_location(new, node)
                _put(owner, field, place, new)
                yield f"line {node.lineno}: {word}: {ast.unparse(new)}", ast.unparse(ast.fix_missing_locations(tree))
                _put(owner, field, place, node)


def _put(owner: ast.AST, field: str, place: int | None, new: ast.expr) -> None:
    if place is None:
        setattr(owner, field, new)
    else:
        getattr(owner, field)[place] = new


def _expressions(
    tree: ast.AST, skipped: frozenset[str], inside: bool = False
) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Where the expressions in the bodies of functions stand; annotations, defaults and decorators do not count."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(tree, ast.Call):
            continue
        several = value if isinstance(value, list) else [value]
        for place, child in enumerate(several):
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.FunctionDef):
                if child.name not in skipped:
                    yield from _expressions(child, skipped, True)
                continue
            if inside and isinstance(child, ast.expr):
                yield tree, field, place if isinstance(value, list) else None
            yield from _expressions(child, skipped, inside)
