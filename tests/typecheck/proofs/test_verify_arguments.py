"""What a proof gives for keys, callables, members of enums, records of all sorts, and what comes from outside."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, Float, Int, PyTree
from weft.typecheck.proofs import watch
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def noise(key: jax.Array, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x + jax.random.normal(key, x.shape)


def unannotated_noise(x: Float[Array, "n d"], *, rng=None) -> Float[Array, "n d"]:
    return x if rng is None else x + jax.random.normal(rng, x.shape)


def attend(query: Float[Array, "d"], key: jax.Array, value: Float[Array, "n d"]) -> Float[Array, "d"]:
    return jax.nn.softmax(key @ query) @ value


@pytest.mark.parametrize("function", [noise, unannotated_noise, attend])
def test_a_key_is_told_by_its_name_unless_it_goes_with_queries(function: Callable[..., Any]):
    report = verify(function)
    assert report.ok
    assert report.verdict is not Verdict.SKIPPED, str(report)


def folded(
    f: Callable[[Float[Array, "frames c"]], Float[Array, "frames k"]], video: Float[Array, "b t c"]
) -> Float[Array, "b t k"]:
    b, t, c = video.shape
    return f(video.reshape(b * t, c)).reshape(b, t, -1)


def unfolded(
    f: Callable[[Float[Array, "frames c"]], Float[Array, "frames k"]], video: Float[Array, "b t c"]
) -> Float[Array, "b t k"]:
    return f(video)


def test_a_callables_own_names_are_what_it_is_called_with():
    assert verify(folded).proved


def test_a_callable_that_is_called_with_other_shapes_than_it_takes_is_a_failure():
    report = verify(unfolded)
    assert not report.ok
    assert "f takes" in str(report)


class Pool(enum.Enum):
    MEAN = "mean"
    LAST = "last"


def pool(x: Float[Array, "b t d"], how: Pool) -> Float[Array, "b d"]:
    return x.mean(axis=1) if how is Pool.MEAN else x[-1]


def test_every_member_of_an_enum_is_tried():
    report = verify(pool)
    assert not report.ok
    assert "how = Pool.LAST" in str(report)


@dataclass
class Affine:
    weight: Float[Array, "inp out"]

    def __call__(self, x: Float[Array, "b inp"]) -> Float[Array, "b out"]:
        return x @ self.weight

    def back(self, y: Float[Array, "b out"]) -> Float[Array, "b inp"]:
        return y @ self.weight


class Pair(NamedTuple):
    weight: Float[Array, "inp out"]

    def back(self, y: Float[Array, "b out"]) -> Float[Array, "b inp"]:
        return y @ self.weight


def test_dataclasses_and_named_tuples_are_proved_method_by_method():
    report = verify(Affine)
    assert [contract.verdict for contract in report.contracts] == [Verdict.PROVED, Verdict.FAILS]
    assert not verify(Pair.back).ok


class Agent:
    def __init__(self, rate: float):
        self.rate = rate

    def update(self, q: Float[Array, "s a"], s: Int[Array, "b"]) -> Float[Array, "b"]:
        return self.rate * q[s].max(axis=0)


def test_a_bound_method_of_any_object_is_proved_for_that_object():
    assert not verify(Agent(0.1).update).ok


@dataclass
class Augmentation:
    scale: Float[Array, "n"]
    names: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=lambda: {"crop": 2})


def test_a_field_whose_default_a_factory_makes_stays_at_that_default():
    def cropped(augmentation: Augmentation, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * augmentation.scale * augmentation.sizes["crop"]

    report = verify(cropped)
    assert report.verdict is Verdict.HOLDS
    assert report.assumptions == ("augmentation.sizes = {'crop': 2}",)


class Features(eqx.Module):
    freqs: Float[Array, "coords bands"]

    def __init__(self, coords: int, bands: int):
        self.freqs = jnp.zeros((bands, coords))

    def __call__(self, x: Float[Array, "n coords"]) -> Float[Array, "n bands"]:
        return x @ self.freqs


def test_a_constructors_integers_are_the_dims_of_their_names():
    report = verify(Features)
    assert not report.ok
    assert "field freqs" in str(report)


def make_rollout(horizon: int) -> Callable[..., Any]:
    def rollout(x: Float[Array, "s"]) -> Float[Array, "horizon s"]:
        return jnp.stack([x] * horizon, axis=1)

    return rollout


def test_an_integer_of_a_closure_is_the_dim_of_its_name():
    assert not verify(make_rollout(3)).ok


def smooth(x: Float[Array, "n"], size: int = 3) -> Float[Array, "n"]:
    return jnp.convolve(x, jnp.ones(size) / size, mode="same")


def halves(x: Float[Array, "n"], w: Float[Array, "modes"]) -> Float[Array, "modes"]:
    return jnp.abs(jnp.fft.rfft(x))[: w.shape[0]] * w


def test_what_only_small_sizes_break_is_an_assumption():
    assert "holds when n >= 3" in str(verify(smooth))
    assert verify(halves).ok


def scaled(x: Float[Array, "n"], **kwargs: Any) -> Float[Array, "n"]:
    return x * kwargs["scale"]


def test_what_a_program_takes_from_its_keywords_is_asked_for():
    (contract,) = verify(scaled).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("**kwargs: the annotation leaves it open (KeyError: 'scale')")
    assert verify(scaled, args={"kwargs": {"scale": 2.0}}).proved


def doubled(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return 2 * x


class Normed(eqx.Module):
    norm: Callable[..., Any] = doubled

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.norm(x)


def test_an_annotated_function_in_a_field_is_no_method_and_is_named():
    (contract,) = verify(Normed).contracts
    assert contract.name == "Normed.__call__"
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("self.norm = doubled",)


class Positions(weft.Module):
    n: int = weft.static()
    table: Float[Array, "{self.n} d"]

    def __call__(self, x: Float[Array, "{self.n} d"]) -> Float[Array, "{self.n} d"]:
        return x + self.table


def test_the_annotation_of_a_field_may_read_another_field():
    assert verify(Positions).proved, verify(Positions)


class Frozen(eqx.Module):
    value: Float[Array, "..."]


class Kept(eqx.Module):
    table: Float[Array, "n d"]

    def __init__(self, table: Float[Array, "n d"]):
        self.table = Frozen(table)

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "n"]:
        return self.table.value @ x


def test_a_wrapper_in_an_annotated_field_is_its_packages_own_affair(monkeypatch: pytest.MonkeyPatch):
    assert "found Frozen" in str(verify(Kept))
    monkeypatch.setattr(watch, "is_users", lambda file, own=frozenset(): file in own)  # as if it were installed
    assert verify(Kept).ok


def halved(
    x: Float[Array, "{shape[0]} {shape[1]}"] | Float[Array, "{shape[0]} {shape[1]} {shape[2]}"], shape: tuple[int, int]
) -> Float[Array, "{shape[0]} {shape[1]}//2+1"]:
    return jnp.fft.rfft(x).real


def test_what_an_expression_reads_is_made_before_the_array_and_a_member_that_it_does_not_fit_is_not_tried():
    report = verify(halved)
    assert report.verdict is Verdict.HOLDS, str(report)
    assert [one for one in report.contracts[0].assumptions if "x is not a" in one and "{shape[2]}" in one]


def by_rows(f: Callable[[Float[Array, "_ d"]], Float[Array, "_ _"]], xs: Float[Array, "n d"]) -> Float[Array, "n 2 d"]:
    return f(xs).reshape(xs.shape[0], 2, xs.shape[1])


def test_axes_that_a_callables_annotation_leaves_open_are_no_failure_of_its_caller():
    report = verify(by_rows)
    assert report.verdict is Verdict.SKIPPED
    assert "f: the annotation leaves it open" in str(report)


def counted(x: Int[np.ndarray, "n"]) -> Int[Array, ""]:
    return jnp.asarray(len(set(x.tolist())))


def doubled(x: Float[np.ndarray, "n"] | Float[Array, "n"]) -> Float[Array, "n"]:
    return 2 * jnp.asarray(x)


def test_an_argument_that_only_numpy_has_is_skipped():
    assert "NumPy computes with the numbers" in str(verify(counted))
    assert verify(doubled).proved


def activated(x: Float[Array, "n d"], act: Callable) -> Float[Array, "n d"]:
    return act(x) + x


def loss_of(x: Float[Array, "n d"], loss: Callable[..., Any]) -> Float[Array, ""]:
    return loss(x)


def turned(x: Float[Array, "n d"], act: Callable) -> Float[Array, "d n"]:
    return act(x.T) if x.shape[0] > 1000 else x


def test_what_a_callable_returns_of_which_nothing_is_said_is_assumed():
    (contract,) = verify(activated).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("act returns a value like its first argument",)


def test_a_failure_behind_what_is_assumed_says_nothing():
    (contract,) = verify(loss_of).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("loss: the annotation does not say what it returns")


def test_a_failure_before_a_callable_is_called_is_one():
    assert verify(turned).contracts[0].verdict is Verdict.FAILS


def first_of(state: tuple[Float[Array, "h"], ...], x: Float[Array, "h"]) -> Float[Array, "h"]:
    (only,) = state
    return only + x


def levels(x: Float[Array, "a b"], depth: int) -> Float[Array, "..."]:
    return jnp.sum(x, axis=tuple(range(-depth, 0)))


def test_how_many_items_something_is_taken_apart_into_is_an_assumption():
    assert verify(first_of).assumptions == ("state has 1 item",)


def test_an_integer_that_counts_axes_is_tried_at_small_numbers():
    (contract,) = verify(levels).contracts
    assert contract.assumptions == ("depth is among the sizes tried: 2",)


class Settings:
    """Holds whatever it is given."""

    def __init__(self, **values: Any):
        vars(self).update(values)


class Fixed:
    def __init__(self, scale: float = 2.0):
        self.scale = scale


def configured(x: Float[Array, "n"], settings: Settings) -> Float[Array, "n"]:
    return x * settings.model.scale


def misspelt(x: Float[Array, "n"], fixed: Fixed) -> Float[Array, "n"]:
    return x * fixed.scales


def read(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x * jnp.load("no such file")


def test_what_a_configuration_holds_and_a_file_has_is_not_in_the_annotations():
    (contract,) = verify(configured).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("**settings.values, settings: the annotation leaves it open")
    (contract,) = verify(read).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("it needs a device, a library or a file that is not here (FileNotFoundError")


def test_what_an_object_does_not_have_is_a_failure():
    assert "has no attribute 'scales'" in str(verify(misspelt).failures[0])


def grouped(x: Float[Array, "n"], names: PyTree) -> Float[Array, "n"]:
    return x * len(set(jax.tree.leaves(names)))


def test_what_is_looked_up_of_a_tree_is_no_array():
    (contract,) = verify(grouped).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "names, tree.b, tree.w: the annotation leaves it open" in contract.reason


VALIDATING = """
class Checked:
    def __init__(self, heads: int, width: int):
        if heads < 1000 or width < 1000:
            raise ValueError("2 validation errors")
        self.heads, self.width = heads, width
"""


def test_what_the_validation_of_a_library_refuses_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "validating.py").write_text(VALIDATING)
    monkeypatch.syspath_prepend(str(library))
    checked: Any = importlib.import_module("validating").Checked

    class Config(checked):
        pass

    def scaled(config: Any, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * config.heads

    scaled.__annotations__["config"] = Config
    (contract,) = verify(scaled).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "the constructors of their classes" in contract.reason


def halved_or_not(x: Float[Array, ""]) -> Float[Array, ""]:
    return jax.lax.cond(x < 1, lambda x: x / 2, lambda x: x + jnp.zeros(()), x)


def test_floats_are_of_64_bits_where_jax_makes_them_so_and_what_asks_for_that_says_it():
    of_16 = "Float arrays are not of bfloat16"  # as the branches then differ in dtype
    assert verify(halved_or_not).contracts[0].assumptions == (of_16,)
    with jax.enable_x64(True):
        (contract,) = verify(halved_or_not).contracts
        assert contract.verdict is Verdict.HOLDS
        assert contract.assumptions == ("floats are of 64 bits, as JAX makes them here", of_16)
        (failure,) = verify(turned).failures
        assert "f64[" in failure.message


BARE = """
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Real


def noisy(key: Key, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x + jax.random.normal(key, x.shape)


def noisily(key: Key, x: Float[Array, "n d"], by: Real) -> Float[Array, "n d"]:
    return noisy(key, x) * by


def wrong(key: Key, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return noisy(key, x) @ x


def calling(key: Key, x: Float[Array, "n d"]) -> Float[Array, "d n"]:
    return transposed(noisy(key, x))


def transposed(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
    return x
"""


def test_a_dtype_without_brackets_in_a_library_is_taken_for_what_it_means_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "bare.py").write_text(BARE)
    monkeypatch.syspath_prepend(str(library))
    bare: Any = importlib.import_module("bare")
    (noisy,), (noisily,) = verify(bare.noisy).contracts, verify(bare.noisily).contracts
    assert (noisy.verdict, noisily.verdict) == (Verdict.PROVED, Verdict.HOLDS)
    assert noisily.assumptions == ("by is of 0 axes",)
    assert [one.message for one in noisy.warnings] == [
        'key: jaxtyping accepts no array for Key without brackets; weft takes it to mean Key[Array, "..."]'
    ]
    # No checker can be asked to show it: jaxtyping refuses the annotation, and JAX does show what it raises by itself.
    (contract,) = verify(bare.wrong).contracts
    assert contract.verdict is Verdict.FAILS
    assert "dot_general" in contract.failures[0].message
    assert "beartype" not in contract.failures[0].program
    # jaxtyping's import hook refuses the package, but the annotations say what is wrong.
    (contract,) = verify(bare.calling).contracts
    assert contract.verdict is Verdict.FAILS
    assert "transposed, return" in contract.failures[0].message


class OfBare(eqx.Module):
    width: int
    weight: Float[Array, "width out"]

    def __init__(self, width, out, key):
        self.width = width
        self.weight = jax.random.normal(key, (width, out))

    def __call__(self, x: Float[Array, "n width"]) -> Float[Array, "n out"]:
        return x @ self.weight


class OfBareStates(eqx.Module):
    states: int

    def __init__(self, states):
        self.states = states

    def initial(self) -> Float[Array, "{self.states}"]:
        return jnp.zeros(self.states)


def test_a_parameter_without_an_annotation_is_what_the_field_of_its_name_holds():
    assert verify(OfBare)
    (contract,) = verify(OfBareStates).contracts
    assert contract.verdict is Verdict.PROVED, contract
