"""What functions of random programs do with a record as a value: it is copied, put into another, reset, and looked at.

The statements are of the same sort as those of `random_statements`; `BETWEEN` is what happens to the record that one
call returned before the next call takes it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from random_records import Leaf, Record, constants, leaves, records
from random_statements import Code, Statement, Whole, assignment, chain

# How a record becomes an equal one. The first ones hold inside of every transform.
COPIES = [
    "m = copy.copy(m)",
    "m = dataclasses.replace(m)",
    "m = Box(m, 2).inner",
    "m = Box(m, 2).replace(note=3).inner",
    "m = weft.jit(lambda box: box.replace(note=3))(Box(m, 2)).inner",
    "m = weft.jit(lambda r: r)(m)",
    "m = reassembled(m)",
    "m = weft.tree.merge(*weft.tree.split(m))",
    "repr(m)",
]
BETWEEN = [
    *["pass"] * 3,
    *COPIES,
    "m = copy.deepcopy(m)",
    "m = jax.tree.map(lambda v: v, m)",
    "m = jax.block_until_ready(m)",
    "m = weft.at(m).w.set(m.w)",
    "m = eqx.tree_at(lambda r: r.w, m, m.w)",
    "m = m.replace(w=m.w + 0)",
    "m = weft.jit(lambda pair: pair[::-1])((m, m.w))[1]",
    "m = weft.jit(lambda box: box)(Box(reassembled(m), 2)).inner",
    "assert m == m and m == copy.copy(m)",
    "assert weft.jit(lambda r: r)(m) == m",
    "jax.tree.leaves(m)",
    "vars(m)",
]
PICKLED = "m = pickle.loads(pickle.dumps(m))"


@dataclass
class Seen(Statement):
    """x becomes a function of itself and a cached property of a record, which is one of a leaf of its own."""

    parts: tuple[str, ...]

    def weft(self, code: Code) -> None:
        code.add(f"x = settle(x + {code.read(''.join(self.parts))}.seen)")

    def plain(self, code: Code) -> None:
        code.add(f"x = settle(x + seen({code.key(''.join(self.parts) + '.w')}))")


@dataclass
class Pair(Statement):
    """Two records of one class go through a transform, and come back in the other order."""

    leaf: Leaf
    rebinds: bool

    def weft(self, code: Code) -> None:
        path, name = self.leaf.path, f"pair{code.fresh()}"
        whole = f"peek({code.root})" if code.threaded else code.root
        rebinds = self.rebinds and not code.threaded
        code.add("@weft.jit")
        code.add(f"def {name}(one, two, x):")
        code.add(f"    x = settle(x + like(one{path}, x) - like(two{path}, x))")
        code.add(f"    return {'x, two, one' if rebinds else 'x'}")
        code.add(f"{f'x, _, {code.root}' if rebinds else 'x'} = {name}({whole}, doubled({whole}), x)")

    def plain(self, code: Code) -> None:
        leaf = code.key(self.leaf.path)
        code.add(f"x = settle(x + like({leaf}, x) - like(doubled({leaf}), x))")


@dataclass
class Reset(Statement):
    """A count becomes the number 0, which crosses into or out of a transform; an array of counts, zeros."""

    leaf: Leaf
    style: str

    def writes(self, record: Record) -> list[str]:
        return [self.leaf.path]

    def weft(self, code: Code) -> None:
        if code.threaded:
            code.add(assignment(code, self.leaf.parts, f"reset({code.read(self.leaf.path)})", "replace"))
            return
        if self.style == "at":
            new = f"weft.at(r){self.leaf.path}.set(reset(r{self.leaf.path}))"
        else:
            new = chain("r", code.record, self.leaf.parts, 0, f"reset(r{self.leaf.path})")
        calls = {
            "cond": f"weft.cond(jnp.bool_(True), lambda r: {new}, lambda r: r, {code.root})",
            "fori_loop": f"weft.fori_loop(0, 1, lambda i, r: {new}, {code.root})",
        }
        code.add(f"{code.root} = " + calls.get(self.style, f"weft.jit(lambda r: {new})({code.root})"))

    def plain(self, code: Code) -> None:
        leaf = code.key(self.leaf.path)
        code.add(f"m = {{**m, {code.prefix + self.leaf.path!r}: jnp.zeros_like({leaf})}}")


def random_copy(rng: random.Random) -> Statement:
    """The record becomes an equal one."""
    return Whole(rng.choice(COPIES))


def random_between(rng: random.Random, record: Record) -> str:
    """What is done with the record between two calls."""
    functions = any("jnp." in c.configuration.text or "jax.nn" in c.configuration.text for c in constants(record))
    return rng.choice(BETWEEN if functions else [*BETWEEN, *[PICKLED] * 4])  # JAX's functions cannot be pickled


def random_value_statement(rng: random.Random, record: Record, stateful: bool) -> Statement | None:
    """A statement about a record as a value, or None where the record has nothing that it could be about."""
    seen = [parts for parts, part in records(record) if part.schema.caches]
    numbers = [leaf for leaf in leaves(record) if leaf.array.dtype != "key"]
    sort = rng.choice(["seen", "seen", "pair", "reset"])
    if sort == "seen":
        return Seen(rng.choice(seen)) if seen else None
    if sort == "pair":
        return Pair(rng.choice(numbers), stateful)
    counts = [leaf for leaf in numbers if leaf.array.dtype == "i"]
    style = rng.choice(["jit", "cond", "fori_loop", "at"])
    return Reset(rng.choice(counts), style) if stateful and counts else None
