"""Stages of compilation that take and give records: traced, lowered, compiled.

A stage is that of JAX, of the function over lanes, with what turns a call into lanes and an outcome into a result.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
from weft.core.call_stack import call_with_room
from weft.core.edge import trees
from weft.core.edge.executables import compiling_anew, keeps_executables, serialization
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import StructureError
from weft.core.interpreter.boundary import AnyCrossing
from weft.core.interpreter.interpret import Interpreted
from weft.core.interpreter.retraces import Trace, abstract, changes_between

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

_MAGIC = b"weft compiled 2\n"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Partly untyped.


@dataclass(frozen=True)
class StaticArguments:
    """The arguments that were static as a whole when a function was lowered; a compiled one is called without them.

    Attributes:
        count: how many arguments there were by position.
        by_number, by_name: the static ones among them, and by name.
    """

    count: int
    by_number: Mapping[int, Any]
    by_name: Mapping[str, Any]

    def complete(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with the static ones in their places, if they are not there."""
        if len(args) == self.count - len(self.by_number):
            rest = iter(args)
            args = tuple(self.by_number[i] if i in self.by_number else next(rest) for i in range(self.count))
        return args, {**self.by_name, **kwargs}

    def left_out(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inverse of `complete`."""
        args = tuple(value for i, value in enumerate(args) if i not in self.by_number)
        return args, {name: value for name, value in kwargs.items() if name not in self.by_name}


class Stage:
    """A traced, lowered or compiled function of records: a `jax.stages` object that takes and gives records.

    Whatever is not listed here (`as_text`, `cost_analysis`, `memory_analysis`, ...) is that of the JAX object. As in
    JAX, a compiled function is called without the arguments that were static when it was lowered.

    Args:
        stage: of JAX.
        interpreted: the function.
        crossing: how the arguments crossed that it is for.
        complete: from the arguments that a compiled function is called with to those of the function.
        before: what the lifted function takes before lanes.
        traced: the stage of JAX that this one was made from.
        options: what it was compiled with.
    """

    def __init__(
        self,
        stage: Any,
        interpreted: Interpreted[Any],
        crossing: AnyCrossing,
        complete: Callable[[tuple[Any, ...], Mapping[str, Any]], Arguments],
        before: tuple[Any, ...] = ((),),
        traced: Any = None,
        options: Mapping[str, Any] | None = None,
    ):
        self.stage = stage
        self._interpreted = interpreted
        self._crossing = crossing
        self._complete = complete
        self._before = before
        self._traced = stage if traced is None else traced
        self._options = options or {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def _next(self, stage: Any, options: Mapping[str, Any] | None = None) -> Stage:
        crossing, complete = self._crossing, self._complete
        return Stage(stage, self._interpreted, crossing, complete, self._before, traced=self._traced, options=options)

    def lower(self, **options: Any) -> Stage:
        """Lowers what was traced; the options are those of `jax.stages.Traced.lower`.

        Raises:
            StructureError: if it is `jax.export` that asks: it would export a function of lanes.
        """
        if "_private_parameters" in options:
            raise StructureError(
                "jax.export cannot export a function of records", fix="weft.export(function)(*args).serialize()"
            )
        return self._next(call_with_room(self.stage.lower, **options))

    def compile(self, compiler_options: Mapping[str, Any] | None = None, **options: Any) -> Stage:
        """Compiles what was lowered; the options are those of `jax.stages.Lowered.compile`."""
        options = {"compiler_options": compiler_options, **options}
        return self._next(self.stage.compile(**options), options)

    def _told_again(self) -> dict[str, Any]:
        # JAX keeps what it has lowered with its executable, and compiles again where options are given: this is off.
        return {"xla_embed_ir_in_executable": False, **(self._options.get("compiler_options") or {})}

    def serialize(self) -> bytes:
        """What was compiled, for `weft.jit(f).load` in another process, of the same versions and on like devices.

        Raises:
            StructureError: if it was not compiled yet.
        """
        if not isinstance(self.stage, jax.stages.Compiled):
            raise StructureError("only what was compiled can be serialized", fix=".lower(...).compile().serialize()")
        stage: Any = self.stage
        if keeps_executables():
            # What JAX has read from its cache on disk XLA writes again without its code, at least on the CPU.
            with compiling_anew():
                stage = self._traced.lower().compile(**{**self._options, "compiler_options": self._told_again()})
        # JAX would load it for all the devices that there are.
        numbers = [device.id for device in stage.runtime_executable().local_devices()]
        devices = struct.pack(f"<{1 + len(numbers)}q", len(numbers), *numbers)
        body = devices + serialization.serialize(stage)[0]
        return b"".join((_MAGIC, _digest(self._traced), hashlib.sha256(body).digest(), body))

    def load(self, data: bytes) -> Stage:
        """What `serialize` has given, for what was traced here.

        Raises:
            StructureError: if it is something else, is damaged, or was made from another program.
        """
        size = hashlib.sha256().digest_size
        program, whole, start = (len(_MAGIC) + i * size for i in range(3))
        if not data.startswith(_MAGIC):
            raise StructureError("this is no compiled function of weft's", fix="pass what .serialize() has given")
        if data[whole:start] != hashlib.sha256(data[start:]).digest():
            # What is damaged may still be machine code.
            raise StructureError("this compiled function is damaged or cut", fix="write it anew, or copy it again")
        if data[program:whole] != _digest(self._traced):
            raise StructureError(
                "this was compiled from another program: the function, the structure or shapes of its arguments, or a "
                "version differ",
                fix="compile it anew: .lower(...).compile().serialize()",
            )
        # JAX gives the two definitions back to be kept; those of this trace are the same, and nothing of a record's is
        # read from a file.
        shapes = (trees.structure(info) for info in (self._traced.args_info, self._traced.out_info))
        (count,) = struct.unpack_from("<q", data, start)
        by_number = {device.id: device for device in untyped_jax.devices()}
        devices = [by_number[number] for number in struct.unpack_from(f"<{count}q", data, start + 8)]
        return self._next(
            serialization.deserialize_and_load(data[start + 8 + 8 * count :], *shapes, execution_devices=devices)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs what was compiled.

        Raises:
            StructureError: if the arguments are of another make than those it was compiled for.
        """
        interpreted = self._interpreted
        plan, values, entered = interpreted.plan((interpreted.functions, *self._complete(args, kwargs)))
        # JAX would compare lanes alone, which may agree in number and shapes while something static differs.
        if plan.crossing != self._crossing:
            raise StructureError(
                "the arguments are of another structure than those that this was compiled for",
                at=self._changes(plan.crossing, values),
                fix="compile it for these arguments, or pass arguments of the same structure",
            )
        try:
            out, updates, outcome = self.stage(*self._before, *plan.crossing.group(values))
        except (TypeError, ValueError) as error:
            plan.crossing.name_lanes(error)
            raise
        return interpreted.boundary.hand_over(entered, outcome.value, values, (*out, *updates))

    def _changes(self, crossing: AnyCrossing, values: Sequence[Any]) -> list[str]:
        """What differs between arguments and those that this was compiled for, by path."""
        infos: Any = self._crossing.ungroup(self._traced.args_info[0][len(self._before) :])
        types = [untyped_jax.core.ShapedArray(info.shape, info.dtype) for info in infos]
        boundary = self._interpreted.boundary
        before = Trace(0, boundary, self._crossing, tuple(types), "")
        return changes_between(before, Trace(0, boundary, crossing, tuple(map(abstract, values)), ""))


def _digest(traced: Any) -> bytes:
    """What tells one program from another, in every process: its text, and what it was compiled with."""
    # A jaxpr's text names the functions of custom derivatives with their addresses, which differ from process to
    # process.
    text = _ADDRESS.sub("", str(traced.jaxpr))
    donated = [info.donated for info in trees.flatten(traced.args_info)[0]]
    made_with = (jax.__version__, version("jaxlib"), jax.default_backend(), untyped_jax.device_count())
    return hashlib.sha256(repr((text, donated, made_with)).encode()).digest()
