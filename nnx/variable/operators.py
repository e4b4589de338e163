"""The operators and protocols of a Variable, each of which applies to its value.

A binary operator reads the value of both operands if both are Variables. In-place operators are refused: `v += 1` would
rebind the name `v` to an array, and the Variable would keep its value; `v[...] += 1` changes the Variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from weft.nnx.errors import MISSING, InPlaceError

_UNARY = ("neg", "pos", "abs", "invert", "complex", "int", "float", "index", "trunc", "floor", "ceil")
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "xor": "^", "or": "|",
}  # fmt: skip


def _binary(name: str, value_of: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, operand: Any) -> Any:
        return getattr(self.get_value(), name)(value_of(operand))

    return method


def _unary(name: str) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return getattr(self.get_value(), name)()

    return method


def _in_place(symbol: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, operand: Any) -> Any:
        raise InPlaceError(
            f"In-place operations are not for Variables: `variable {symbol}= x` would only rebind the name",
            fix=f"write `variable[...] {symbol}= x`",
        )

    return method


def _operators(value_of: Callable[[Any], Any]) -> dict[str, Callable[..., Any]]:
    # From tables: Python looks operators up on the class, so `__getattr__` cannot forward them to the value.
    methods: dict[str, Callable[..., Any]] = {f"__{name}__": _unary(f"__{name}__") for name in _UNARY}
    for name, symbol in _SYMBOLS.items():
        methods[f"__{name}__"] = _binary(f"__{name}__", value_of)
        methods[f"__r{name}__"] = _binary(f"__r{name}__", value_of)
        methods[f"__i{name}__"] = _in_place(symbol)
    return {**methods, "__eq__": _binary("__eq__", value_of)}


OPERATORS = tuple(_operators(lambda value: value))


def install_operators(cls: type, value_of: Callable[[Any], Any]) -> None:
    """Defines the operators on a class; `value_of` maps the other operand to its value."""
    for name, method in _operators(value_of).items():
        method.__name__ = name
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)


class ValueProtocols:
    """The protocols that a Variable forwards to its value: those of arrays, containers and functions."""

    __slots__ = ()

    def get_value(self, *, index: Any = MISSING) -> Any:
        raise AssertionError("Variable overrides get_value")

    def set_value(self, value: Any, *, index: Any = MISSING) -> None:
        raise AssertionError("Variable overrides set_value")

    def __jax_array__(self) -> Any:
        return self.get_value()

    def __getitem__(self, key: Any) -> Any:
        return self.get_value(index=key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set_value(value, index=key)

    def __delitem__(self, key: Any) -> None:
        value: Any = self.get_value()
        del value[key]
        self.set_value(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_value()(*args, **kwargs)

    def __len__(self) -> int:
        return len(self.get_value())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_value())

    def __contains__(self, item: Any) -> bool:
        return item in self.get_value()

    def __round__(self, ndigits: int = 0) -> Any:
        return self.get_value().__round__(ndigits)
