"""Recorded calls: what is written down of a call, and what is proved from it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from weft.typecheck.proofs.budget import USUAL
from weft.typecheck.proofs.report import Verdict
from weft.typecheck.recording.proving import called_as, prove_recorded, recorded_only
from weft.typecheck.recording.recorder import MOST_CALLS, Recorder
from weft.typecheck.recording.structures import MOST_NODES, Decoder, Encoder, Opaque, Unresolved

pytest_plugins = ["pytester"]

SOURCE = """
    import enum
    from abc import abstractmethod
    from collections.abc import Callable
    from typing import Any, NamedTuple
    import equinox as eqx
    import jax.numpy as jnp
    from jaxtyping import Array, Float, Int, jaxtyped

    class Kind(enum.Enum):
        FULL = "full"

    class Pair(NamedTuple):
        a: Float[Array, "n"]
        b: int

    class Kernel(eqx.Module):
        @abstractmethod
        def scaled(self, x: Float[Array, "d"]) -> Float[Array, "d"]: ...

        def total(self, x: Float[Array, "n d"]) -> Float[Array, "d"]:
            return self.scaled(jnp.sum(x, 0))

    class Diagonal(Kernel):
        scale: Float[Array, "d"]

        def scaled(self, x):
            return x * self.scale

    class Plain:
        def __init__(self, w):
            self.w = w

        def times(self, x: Float[Array, "n d"], n: int) -> Float[Array, "n d"]:
            assert n == len(x)
            return x * self.w

        def turned(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
            return x.T

    def uses(kernel: Kernel, x: Float[Array, "n d"], how: str, act: Callable = jnp.tanh) -> Float[Array, "d"]:
        assert how == "full"
        return act(kernel.total(x))

    def same(x: Float[Array, "n n"], name: str) -> Float[Array, "n n"]:
        return x

    class Lazy(eqx.Module):
        held: Float[Array, "n"]
        dtype = property(lambda self: self.held.dtype)
        shape = property(lambda self: (int(jnp.sum(self.held)),))

        def __jax_array__(self):
            return self.held

    def scaled(x: Float[Array, "n"], by: int, name: str) -> Float[Array, "n"]:
        return x * by

    def lengths(x: Int[Array, "n"], name: str) -> int:
        return len(x.held)

    def picked(x: Int[Array, "n m"], name: str) -> Int[Array, "n m"]:
        return x.T

    def first_three(x: Float[Array, "n"], name: str) -> Float[Array, "n"]:
        return x[:3]

    def tied(x: Float[Array, "n"], weight: Any) -> Float[Array, "n"]:
        return x * weight

    def in_units(x: Float[Array, "n d"], lengths: Any) -> Float[Array, "n d"]:
        return x / jnp.array(lengths)

    def no_arrays(n: int) -> int:
        return n

    @jaxtyped(typechecker=None)
    def theirs(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    def _private(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    """A module whose calls are recorded, and the recorder."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "recorded_package.py").write_text(textwrap.dedent(SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        recorder = Recorder(["recorded_package"]).install()
        with recorder:
            module: Any = importlib.import_module("recorded_package")
        yield module, recorder
    # A worker that gets tests of this file a second time makes it anew.
    sys.modules.pop("recorded_package", None)


def proof(recorded: tuple[ModuleType, Recorder], name: str) -> Any:
    """The verdict of a name from what was recorded of it."""
    module, recorder = recorded
    calls = {name.partition(":")[2]: one for name, one in recorder.calls.items()}
    for qualname, function, owner in recorded_only(module, calls, set()):
        if qualname == name:
            used = called_as(function, owner, recorder.calls, {})
            return prove_recorded(function, name, owner, used, Decoder(), {}, USUAL)
    return None


def test_a_structure_has_classes_configuration_and_shapes_and_no_numbers(recorded: Any):
    module, _ = recorded
    value = {
        "pair": module.Pair(jnp.full(3, 7.5), 2),
        "kernel": module.Diagonal(jnp.full(2, 7.5)),
        "plain": module.Plain(jnp.full((1, 2), 7.5)),
        "rest": [
            module.Kind.FULL,
            jnp.tanh,
            functools.partial(jnp.sum, axis=0),
            0.5,
            1j,
            None,
            jnp.dtype("int8"),
            slice(2),
        ],
        "key": jax.random.key(0),
    }
    node = json.loads(json.dumps(Encoder().node(value)))
    assert "7.5" not in json.dumps(node)
    made = Decoder().value(node)
    assert Encoder().node(made) == node
    assert made["kernel"].scale == jax.ShapeDtypeStruct((2,), jnp.float32)
    assert made["rest"][:2] == [module.Kind.FULL, jnp.tanh]
    assert made["key"].dtype == value["key"].dtype


class Marker:
    """A plain class of what is known by its identity."""


MARKED = Marker()


def test_sets_are_written_down_and_what_a_module_names_is_that_very_object():
    node = json.loads(json.dumps(Encoder().node({"tags": frozenset({MARKED, 3}), "names": {"b", "a"}})))
    assert Encoder().node(Decoder().value(node)) == node
    assert Decoder().value(node) == {"tags": frozenset({MARKED, 3}), "names": {"a", "b"}}


class Standing(eqx.Module):
    """A record that passes for an array."""

    held: jax.Array

    shape = property(lambda self: self.held.shape)
    dtype = property(lambda self: self.held.dtype)

    def __jax_array__(self):
        return self.held


def test_a_record_that_stands_for_an_array_is_written_down_as_a_record():
    node = Encoder().argument(Standing(jnp.ones(3)))
    assert node["fields"] == {"held": {"array": "float32", "shape": [3]}}


def cyclic_value() -> Any:
    cyclic = SimpleNamespace()
    cyclic.me = cyclic
    return cyclic


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: 0, "imported by its name"),
        (cyclic_value(), "it contains itself"),
        ([0] * MOST_NODES, "more than 1,500 parts"),
        ("x" * 999, "more than 200 characters"),
    ],
)
def test_what_cannot_be_written_down_is_opaque_with_the_reason(value: Any, reason: str):
    with pytest.raises(Opaque, match=reason):
        Encoder().node(value)


@dataclasses.dataclass(slots=True)
class Slotted:
    x: jax.Array
    name: str = "data"


class Unreadable:
    @property
    def __dict__(self):
        raise RuntimeError("not now")


def test_an_object_with_slots_has_a_structure_and_one_that_cannot_be_read_breaks_no_run():
    whole = Decoder().value(Encoder().argument(Slotted(jnp.ones((3, 2)))))
    assert type(whole) is Slotted
    assert (whole.x.shape, whole.name) == ((3, 2), "data")
    assert Encoder().argument(Unreadable()) == {"opaque": "reading its attributes raises RuntimeError: not now"}


def test_a_structure_that_names_what_is_gone_says_so():
    with pytest.raises(Unresolved, match="there is no Gone in json"):
        Decoder().value({"of": "json:Gone", "fields": {}})


def test_a_function_that_takes_an_abstract_class_is_proved_for_what_it_was_given(recorded: Any):
    module, _ = recorded
    assert module.uses(module.Diagonal(jnp.ones(3)), jnp.ones((2, 3)), "full").shape == (3,)
    contract = proof(recorded, "uses")
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("it is called as recorded (1 structure of arguments)",)
    assert proof(recorded, "Kernel.total").verdict is Verdict.PROVED


def test_a_method_of_a_plain_class_is_proved_or_fails_at_sizes_that_were_not_recorded(recorded: Any):
    module, _ = recorded
    plain = module.Plain(jnp.ones(1))
    plain.times(jnp.ones((2, 3)), 2)
    plain.turned(jnp.ones((3, 3)))
    assert proof(recorded, "Plain.times").verdict in (Verdict.PROVED, Verdict.HOLDS)
    contract = proof(recorded, "Plain.turned")
    assert contract.verdict is Verdict.FAILS
    assert "called as recorded" in str(contract.failures[0])


def test_only_what_stays_as_it_was_ties_a_size_to_a_recorded_one(recorded: Any):
    module, _ = recorded
    module.first_three(jnp.ones(3), "name")
    assert "found f32[3]: n is 4, not 3" in str(proof(recorded, "first_three").failures[0])
    module.tied(jnp.ones(3), jnp.ones(3))
    assert "n = 3" in proof(recorded, "tied").assumptions
    module.in_units(jnp.ones((3, 2)), (1.0, 2.0))
    assert "d = 2" in proof(recorded, "in_units").assumptions


def test_a_call_that_does_not_fit_its_annotations_says_nothing(recorded: Any):
    module, _ = recorded
    module.same(jnp.ones((2, 3)), "a")
    contract = proof(recorded, "same")
    assert contract.verdict is Verdict.SKIPPED
    assert "the recorded argument x does not fit its annotation" in contract.reason


def test_numbers_of_another_kind_than_annotated_show_a_shape_all_the_same(recorded: Any):
    module, _ = recorded
    module.picked(jnp.ones((3, 3)), "name")
    contract = proof(recorded, "picked")
    assert contract.verdict is Verdict.FAILS
    assert "expected Int[Array" in str(contract.failures[0])


def test_an_array_that_was_given_for_a_number_is_taken_for_one(recorded: Any):
    module, _ = recorded
    module.scaled(jnp.ones(1), jnp.ones((3, 1)), "name")
    assert proof(recorded, "scaled").verdict in (Verdict.PROVED, Verdict.HOLDS)


def test_a_record_in_place_of_an_array_is_not_asked_what_it_would_compute(recorded: Any):
    module, _ = recorded
    module.lengths(module.Lazy(jnp.ones(3)), "name")
    assert "x does not fit its annotation" in proof(recorded, "lengths").reason


def test_calls_that_raise_and_functions_that_are_not_judged_are_not_recorded(recorded: Any):
    module, recorder = recorded
    before = json.dumps(recorder.calls)
    with pytest.raises(AssertionError):
        module.uses(module.Diagonal(jnp.ones(3)), jnp.ones((2, 3)), "none")
    assert module.no_arrays(3) == 3
    assert module._private(jnp.ones(3)).shape == (3,)
    assert json.dumps(recorder.calls) == before


def test_a_few_structures_of_a_function_are_enough(recorded: Any):
    module, recorder = recorded
    for size in range(1, 10):
        module.theirs(jnp.ones(size))
        module.theirs(jnp.ones(size))
    assert len(recorder.calls["recorded_package:theirs"]) == MOST_CALLS
    assert recorder.missed() == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_test_run_writes_what_its_processes_recorded(pytester: pytest.Pytester, workers: str):
    package = pytester.mkpydir("recorded_here")
    (Path(package) / "parts.py").write_text(textwrap.dedent(SOURCE))
    pytester.makepyfile(
        test_it=textwrap.dedent(
            """
            import jax.numpy as jnp
            from recorded_here.parts import Diagonal, same

            def test_one():
                assert Diagonal(jnp.ones(3)).total(jnp.ones((2, 3))).shape == (3,)

            def test_two():
                same(jnp.ones((2, 2)), "a")
            """
        )
    )
    result = pytester.runpytest_subprocess("--weft-record=recorded_here", "-p", "no:cacheprovider", workers)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 functions, 2 structures: .weft/calls.json"])
    content = json.loads((pytester.path / ".weft" / "calls.json").read_text())
    assert set(content["calls"]) == {"recorded_here.parts:Kernel.total", "recorded_here.parts:same"}
    refused = pytester.runpytest_subprocess("--weft-record", "no-package", workers)
    refused.stderr.fnmatch_lines(["*'no-package' is not a package to record*"])
