"""Stages of compilation over records: traced, lowered, compiled.

A stage wraps a `jax.stages` object of the function over lanes; it turns calls into lanes, and outcomes into results.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import jax
from weft.core.edge import trees
from weft.core.edge.executables import compiling_anew, keeps_executables, serialization
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import StructureError
from weft.core.frames import call_with_room
from weft.core.interpreter.boundary import AnyCrossing
from weft.core.interpreter.interpret import Interpreted
from weft.core.interpreter.retraces import Trace, abstract, changes_between

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

_MAGIC = b"weft compiled 2\n"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class StaticArguments:
    """The static arguments with which a function was lowered; the compiled function is called without them.

    Attributes:
        count: the number of positional arguments.
        by_number, by_name: the static arguments by position, and by name.
    """

    count: int
    by_number: Mapping[int, Any]
    by_name: Mapping[str, Any]

    def complete(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Adds the static arguments to the arguments of a compiled function, unless they are there already."""
        if len(args) == self.count - len(self.by_number):
            rest = iter(args)
            args = tuple(self.by_number[i] if i in self.by_number else next(rest) for i in range(self.count))
        return args, {**self.by_name, **kwargs}

    def left_out(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inverse of `complete`."""
        args = tuple(value for i, value in enumerate(args) if i not in self.by_number)
        return args, {name: value for name, value in kwargs.items() if name not in self.by_name}


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """A traced, lowered or compiled function of records: a `jax.stages` object whose arguments and results are records.

    All other attributes (`as_text`, `cost_analysis`, `memory_analysis`, ...) are those of the JAX object. As in JAX, a
    compiled function is called without the arguments that were static when it was lowered.

    Attributes:
        stage: the JAX object.
        _interpreted: the function.
        _crossing: the crossing of the arguments that it was traced for.
        _complete: adds static arguments to the arguments of a compiled function.
        _before: the arguments of the lifted function before its lanes.
        _from: the traced JAX object that this stage comes from; None: this is it.
        _options: the options of `compile`.
    """

    stage: Any
    _interpreted: Interpreted[Any]
    _crossing: AnyCrossing
    _complete: Callable[[tuple[Any, ...], Mapping[str, Any]], Arguments]
    _before: tuple[Any, ...] = ((),)
    _from: Any = None
    _options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    @property
    def _traced(self) -> Any:
        return self.stage if self._from is None else self._from

    def _next(self, stage: Any, **options: Any) -> Stage:
        return replace(self, stage=stage, _from=self._traced, _options=options)

    def lower(self, **options: Any) -> Stage:
        """Lowers a traced function; the options are those of `jax.stages.Traced.lower`.

        Raises:
            StructureError: if `jax.export` calls this: it would export a function of lanes.
        """
        if "_private_parameters" in options:
            raise StructureError(
                "jax.export cannot export a function of records", fix="weft.export(function)(*args).serialize()"
            )
        return self._next(call_with_room(self.stage.lower, **options))

    def compile(self, compiler_options: Mapping[str, Any] | None = None, **options: Any) -> Stage:
        """Compiles a lowered function; the options are those of `jax.stages.Lowered.compile`."""
        # Stored with the stage, because `serialize` may have to compile again with the same options.
        options = {"compiler_options": compiler_options, **options}
        return self._next(self.stage.compile(**options), **options)

    def serialize(self) -> bytes:
        """The compiled function as bytes, for `weft.jit(f).load` in another process of the same versions and devices.

        Raises:
            StructureError: if the function is not compiled yet.
        """
        if not isinstance(self.stage, jax.stages.Compiled):
            raise StructureError("only a compiled function can be serialized", fix=".lower(...).compile().serialize()")
        stage: Any = self.stage
        if keeps_executables():
            # XLA (at least on the CPU) serializes an executable that JAX has read from its cache on disk without its
            # code, so the function is compiled again, without the cache. A lowered function has its executable cached
            # in memory too, which an option makes JAX ignore: this one has the default value.
            options: dict[str, Any] = {
                "xla_embed_ir_in_executable": False,
                **(self._options.get("compiler_options") or {}),
            }
            with compiling_anew():
                stage = self._traced.lower().compile(**{**self._options, "compiler_options": options})
        # The devices are stored, because JAX would load the function for all devices of the process.
        numbers = [device.id for device in stage.runtime_executable().local_devices()]
        devices = struct.pack(f"<{1 + len(numbers)}q", len(numbers), *numbers)
        body = devices + serialization.serialize(stage)[0]
        return b"".join((_MAGIC, _digest(self._traced), hashlib.sha256(body).digest(), body))

    def load(self, data: bytes) -> Stage:
        """Loads the bytes of `serialize`, if they come from the program that was traced here.

        Raises:
            StructureError: if the bytes are not a compiled function, are damaged, or come from another program.
        """
        # Where these begin, after the magic: the digest of the program, that of the body, and the body.
        size = hashlib.sha256().digest_size
        program, whole, start = (len(_MAGIC) + i * size for i in range(3))
        if not data.startswith(_MAGIC):
            raise StructureError(
                "these bytes are not a compiled function of weft", fix="pass the bytes that .serialize() returned"
            )
        # Checked before JAX loads it, because damaged machine code may still run.
        if data[whole:start] != hashlib.sha256(data[start:]).digest():
            raise StructureError(
                "this compiled function is damaged or truncated", fix="serialize it again, or copy it again"
            )
        if data[program:whole] != _digest(self._traced):
            raise StructureError(
                "this was compiled from another program: the function, the structure or shapes of its arguments, or a "
                "version differ",
                fix="compile it again: .lower(...).compile().serialize()",
            )
        # The treedefs are those of this trace, which are equal, so that no treedef is unpickled from the data.
        shapes = (trees.structure(info) for info in (self._traced.args_info, self._traced.out_info))
        (count,) = struct.unpack_from("<q", data, start)
        by_number = {device.id: device for device in untyped_jax.devices()}
        devices = [by_number[number] for number in struct.unpack_from(f"<{count}q", data, start + 8)]
        return self._next(
            serialization.deserialize_and_load(data[start + 8 + 8 * count :], *shapes, execution_devices=devices)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a compiled function.

        Raises:
            StructureError: if the arguments have another structure than those that it was compiled for.
        """
        interpreted = self._interpreted
        plan, values, entered = interpreted.plan((interpreted.functions, *self._complete(args, kwargs)))
        # JAX would compare lanes only, whose shapes may agree although static values differ.
        if plan.crossing != self._crossing:
            raise StructureError(
                "the arguments have another structure than those that this function was compiled for",
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
        """The differences between arguments and those that this was compiled for, by path."""
        # The avals that it was traced for are those of JAX's stage, without the arguments before the lanes.
        infos: Any = self._crossing.ungroup(self._traced.args_info[0][len(self._before) :])
        types = [untyped_jax.core.ShapedArray(info.shape, info.dtype) for info in infos]
        boundary = self._interpreted.boundary
        before = Trace(0, boundary, self._crossing, tuple(types), "")
        return changes_between(before, Trace(0, boundary, crossing, tuple(map(abstract, values)), ""))


def _digest(traced: Any) -> bytes:
    """A hash of a program that is the same in every process: of its jaxpr, its donations, versions and devices."""
    # The text of a jaxpr contains the addresses of functions with custom derivatives, which differ between processes.
    text = _ADDRESS.sub("", str(traced.jaxpr))
    donated = [info.donated for info in trees.flatten(traced.args_info)[0]]
    environment = (jax.__version__, version("jaxlib"), jax.default_backend(), untyped_jax.device_count())
    return hashlib.sha256(repr((text, donated, environment)).encode()).digest()
