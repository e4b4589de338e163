"""How much of weft one opens to read one behaviour: `make reading`; with ARGS=all it lists each function used once.

Three figures a program: the files of weft that its calls pass through, the calls of weft's functions, and the changes
of room, i.e. the calls whose file lies in another folder than that of the function of weft that called. And over the
whole code: the private functions that are used once, by room, and the files of each room.

Comprehensions count as part of their function, since Python 3.12 calls no frame for them; generators count at each
resumption, since a reader follows each.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float
from weft.typecheck import verify

ROOT = Path(weft.__file__).resolve().parent
PACKAGES = ("core", "transforms", "modules", "nnx", "typecheck", "insight", "migrate")


class Depth(NamedTuple):
    """What a call passes through."""

    files: int
    calls: int
    changes: int


def depth(program: Callable[[], Any]) -> Depth:
    """Runs a program and counts the calls of weft's functions in this thread."""
    met: Counter[str] = Counter()
    changes = 0
    inside = tuple(f"{ROOT}/{package}/" for package in PACKAGES)
    rooms: list[str | None] = []  # of each frame that is open, None for those of others

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal changes
        if event == "call":
            name = frame.f_code.co_filename
            room = None
            if name.startswith(inside):
                met[name] += 1
                room = str(Path(name).parent)
                above = next((r for r in reversed(rooms) if r is not None), room)
                changes += room != above
            rooms.append(room)
        elif event == "return" and rooms:
            rooms.pop()

    sys.setprofile(profile)
    try:
        program()
    finally:
        sys.setprofile(None)
    return Depth(len(met), met.total(), changes)


def one_jit() -> Callable[[], Any]:
    class Scale(weft.Module):
        factor: jax.Array

        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.factor

    model, x = Scale(jnp.ones(4)), jnp.ones(4)
    step = weft.jit(lambda model, x: model(x))
    return lambda: step(model, x)


def one_scan() -> Callable[[], Any]:
    class Counter(weft.Module):
        count: jax.Array

        def __call__(self, x: jax.Array) -> tuple[jax.Array, Counter]:
            return x + self.count, self.replace(count=self.count + 1)

    class Net(weft.Module):
        blocks: Counter

        def __call__(self, x: jax.Array) -> tuple[jax.Array, Net]:
            with weft.thread(self) as t:
                return t.done(weft.scan(t.blocks)(x))

    net, x = Net(Counter(jnp.arange(3.0))), jnp.array(0.0)
    return lambda: net(x)


def one_proof() -> Callable[[], Any]:
    def double(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return x * 2

    return lambda: verify(double)


PROGRAMS = {"weft.jit of a record": (one_jit, 3), "weft.scan(t.blocks), eager": (one_scan, 2), "verify": (one_proof, 1)}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def used_once() -> list[tuple[str, int, str, int]]:
    """File, line, name and lines of the private functions and methods whose name is read in one place."""
    trees = list(sources())
    read: Counter[str] = Counter()
    for _, tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    read[name] += 1
    return [
        (file, node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for file, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("_")
        and not node.name.endswith("__")
        and read[node.name] == 1
    ]


def main() -> None:
    for name, (make, times) in PROGRAMS.items():
        make()()  # modules of weft are imported at first use, and that is no depth
        program = make()
        for turn in range(times):
            measured = depth(program)
            counts = f"{measured.files:4} files {measured.calls:6} calls {measured.changes:5} changes of room"
            print(f"{f'{name}, call {turn + 1}':34} {counts}")
    once = used_once()
    print(f"private functions used once {len(once)}, of at most 3 lines {sum(lines <= 3 for *_, lines in once)}")
    rooms = Counter(str(Path(file).parent) for file, _ in sources())
    of_rooms = Counter(str(Path(file).parent) for file, *_ in once)
    for room, files in rooms.most_common():
        print(f"  {room:28} {files:3} files {of_rooms[room]:4} used once")
    if sys.argv[1:]:
        print(*(f"{file}:{line} {name} ({lines} lines)" for file, line, name, lines in once), sep="\n")


if __name__ == "__main__":
    main()
