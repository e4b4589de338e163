"""Contracts of packages that have never heard of weft, put into them as they are imported."""

from __future__ import annotations

import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from weft import ContractError
from weft.errors import ImportHookError
from weft.typecheck import install_import_hook, mode

pytest_plugins = ["pytester"]

SOURCE = '''
"""Layers."""
from __future__ import annotations

import dataclasses
import functools
import typing

import beartype
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, jaxtyped, print_bindings


class Linear(eqx.Module):
    weight: Float[Array, "out in"]
    bias: Float[Array, "out"]

    def __init__(self, inp: int, out: int):
        self.weight = jnp.ones((out, inp))
        self.bias = self.zeros(out)  # a method of an instance that is half made

    def zeros(self, out: int) -> Float[Array, "out"]:
        return jnp.zeros(out)

    def __call__(self, x: Float[Array, "in"]) -> Float[Array, "out"]:
        return self.weight @ x + self.bias

    @property
    def wrong(self) -> Float[Array, "in"]:
        return self.bias

    @staticmethod
    def same(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x


class Pair(eqx.Module):
    a: Float[Array, "n"] = eqx.field(converter=jnp.asarray)
    b: Float[Array, "n"] = eqx.field(converter=jnp.asarray)


@dataclasses.dataclass
class Batch:
    size: int
    x: Float[Array, "{size} n"]
    y: Float[Array, "{size}"]


class SmallBatch(Batch): ...


@functools.partial(jax.jit, static_argnames="k")
def jitted(x: Float[Array, "n"], k: int) -> Float[Array, "n"]:
    return jnp.ones(k)


def asks(x: Float[Array, "n"]) -> Float[Array, "m"]:
    assert isinstance(jnp.ones(4), Float[Array, "n+1"])
    assert isinstance(jnp.ones(2), Float[Array, "m"])
    print_bindings()
    return jnp.ones(2 if x[0] == 0 else 3)


def outer(x: Float[Array, "n"]):
    def inner(y: Float[Array, "n"]) -> Float[Array, "n"]:
        return y[1:]

    return inner(x)


@typing.no_type_check
def unchecked(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return 1


@jaxtyped(typechecker=beartype.beartype)
def its_own(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return 1


def unreadable(x: Float[Array, "n"], y: Float[Array, "*a *b"]):
    return 1
'''


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("strange")
    package = folder / "strange_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "layers.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    with install_import_hook("strange_package") as hook:
        import strange_package.layers as layers  # pyright: ignore[reportMissingImports]
    layers.hook = hook
    yield layers
    sys.path.remove(str(folder))
    for name in ("strange_package", "strange_package.layers"):
        del sys.modules[name]


def test_fields_of_an_instance_bind_the_dims_of_its_methods(strange: Any):
    linear = strange.Linear(3, 2)
    assert linear(jnp.ones(3)).shape == (2,)
    with pytest.raises(ContractError, match=r"argument x of Linear.__call__ should be f32\[in=3\], and is f32\[4\]"):
        linear(jnp.ones(4))
    with pytest.raises(ContractError, match=r"Linear.wrong should be f32\[in=3\]"):
        _ = linear.wrong
    with pytest.raises(ContractError, match=r"argument x of Linear\.same"):
        strange.Linear.same(jnp.ones((2, 1)))


def test_an_error_is_cut_to_the_frames_of_the_program(strange: Any):
    with pytest.raises(ContractError) as caught:
        strange.Linear.same(jnp.ones((2, 1)))
    assert {Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)} == {
        "test_importing.py"
    }


def test_instances_in_parts_and_in_stacks_are_no_errors(strange: Any):
    linear = strange.Linear(3, 2)
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), linear)
    assert jax.vmap(lambda layer, x: layer(x), in_axes=(0, None))(stack, jnp.ones(3)).shape == (4, 2)
    assert eqx.filter_grad(lambda layer: layer(jnp.ones(3)).sum())(linear).bias.shape == (2,)
    assert eqx.combine(*eqx.partition(linear, eqx.is_array)).bias.shape == (2,)


def test_fields_are_checked_when_an_instance_is_made(strange: Any):
    strange.Pair([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ContractError, match=r"field Pair.b should be f32\[n=2\]"):
        strange.Pair([1.0, 2.0], [1.0])
    strange.Batch(2, jnp.ones((2, 3)), jnp.ones(2))
    with pytest.raises(ContractError, match=r"field Batch.y"):
        strange.Batch(2, jnp.ones((2, 3)), jnp.ones(3))
    with pytest.raises(ContractError, match=r"field SmallBatch.y"):
        strange.SmallBatch(2, jnp.ones((2, 3)), jnp.ones(3))


def test_other_decorators_hold_checked_code(strange: Any):
    assert jnp.shape(strange.jitted(jnp.ones(2), 2)) == (2,)
    with pytest.raises(ContractError, match="return value of jitted"):
        strange.jitted(jnp.ones(2), 3)
    with pytest.raises(ContractError, match="return value of inner"):
        strange.outer(jnp.ones(3))


def test_what_a_call_has_bound_holds_in_its_body_and_back(strange: Any, capsys: pytest.CaptureFixture[str]):
    assert strange.asks(jnp.zeros(3)).shape == (2,)
    assert "n=3\nm=2" in capsys.readouterr().out
    with pytest.raises(AssertionError):
        strange.asks(jnp.zeros(4))
    with pytest.raises(ContractError, match="m is 3 in the returned value, and has another size in the body"):
        strange.asks(jnp.ones(3))


def test_what_is_checked_otherwise_or_not_at_all_is_left_alone(strange: Any):
    assert strange.unchecked(1) == 1
    with pytest.raises(Exception, match="Type-check error"):
        strange.its_own(jnp.ones(2))
    with mode("off"):
        assert strange.Linear(3, 2)(jnp.ones(3)).shape == (2,)
        assert strange.outer(jnp.ones(3)).shape == (2,)


@pytest.mark.parametrize("arguments", [("one", None), ("one", ("beartype", "beartype")), (["one", 3],)], ids=str)
def test_a_type_checker_in_the_manner_of_jaxtypings_hook_is_refused(arguments):
    with pytest.raises(ImportHookError, match="leave out the type checker"):
        install_import_hook(*arguments)


def test_a_package_that_is_imported_already_is_refused(strange: Any):
    with pytest.raises(ImportHookError, match="install the hook before"):
        install_import_hook("strange_package")
    assert not any(type(one).__name__ == "ImportHook" for one in sys.meta_path)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_run_checks_packages_and_says_what_it_could_not(pytester: pytest.Pytester, workers: str):
    pytester.makepyfile(
        other_package=SOURCE,
        test_it=textwrap.dedent(
            """
            import jax.numpy as jnp
            import pytest
            from other_package import Linear, unreadable

            def test_layer():
                with pytest.raises(TypeError, match="argument x of Linear.__call__"):
                    Linear(3, 2)(jnp.ones(4))

            def test_unread():
                unreadable(jnp.ones(2), jnp.ones(3))
            """
        ),
    )
    options = "--weft-contracts=other_package,no_such_package", "-p", "no:cacheprovider", f"-n{workers}"
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=2)
    said = ["other_package.unreadable: *", "no_such_package: no module has imported it"]
    result.stdout.fnmatch_lines(["*contracts that were not checked*", *said])
    result.stdout.no_fnmatch_line("other_package: *")


@pytest.mark.slow
def test_a_package_that_is_imported_already_is_a_usage_error(pytester: pytest.Pytester):
    result = pytester.runpytest_subprocess("--weft-contracts=pytest", "-p", "no:cacheprovider", "-n0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = "ERROR: --weft-contracts: pytest: the hook adds contracts to a package while it is imported*"
    result.stderr.fnmatch_lines([text])


def test_the_switch_of_jaxtyping_switches_them_off(strange: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError) as raised:
        strange.Linear(3, 2)(jnp.ones(4))
    assert not isinstance(raised.value, ContractError)


def test_no_line_of_a_package_moves(strange: Any):
    path = Path(strange.__file__)
    assert path.read_text().splitlines()[strange.asks.__wrapped__.__code__.co_firstlineno - 1].startswith("def asks")
