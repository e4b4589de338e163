"""What `verify` and `weft check` make of NNX modules, and of functions that take them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Int
from weft import nnx
from weft.typecheck import Batched, check, contract
from weft.typecheck.command.linter import check as check_files
from weft.typecheck.errors import ContractError
from weft.typecheck.language.reading import Scope, read
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Report, Verdict

pytestmark = pytest.mark.slow


class Dense(nnx.Module):
    w: nnx.Param[Float[Array, "din dout"]]

    def __init__(self, din: int, dout: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((din, dout)))

    def __call__(self, x: Float[Array, "*b din"]) -> Float[Array, "*b dout"]:
        return x @ self.w

    def transposed(self, x: Float[Array, "*b din"]) -> Float[Array, "*b dout"]:
        return x @ self.w[...].T


class Undeclared(nnx.Module):
    """Nothing but its constructor says what its sizes are."""

    def __init__(self, din: int, dout: int, *, rngs: nnx.Rngs):
        self.layer = nnx.Linear(din, dout, rngs=rngs)

    def __call__(self, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        return self.layer(x)

    def wrong(self, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        return self.layer(x) @ self.layer.kernel[...].T


class Norm(nnx.Module):
    mean: nnx.BatchStat[Float[Array, "c"]]

    def __init__(self, c: int):
        self.mean = nnx.BatchStat(jnp.zeros(c))
        self.var = nnx.BatchStat(jnp.ones(c))

    def __call__(self, x: Float[Array, "b c"]) -> Float[Array, "b c"]:
        self.mean[...] = 0.9 * self.mean + 0.1 * x.mean(axis=0)
        return x - self.mean

    def declared(self, x: Float[Array, "b c"]) -> Float[Array, "b c"]:
        self.mean.set_value(x.mean(axis=1))
        return x

    def undeclared(self, x: Float[Array, "b c"]) -> Float[Array, "b c"]:
        self.var.set_value(x.var(axis=1))
        return x


def method(report: Report, name: str) -> Any:
    return next(one for one in report.contracts if one.name.endswith(f".{name}"))


def test_a_class_is_built_from_its_constructor_and_proved_for_all_sizes():
    contract = method(verify(Dense), "__call__")
    assert str(contract) == "Dense.__call__: proved for all din, dout, *b"


def test_a_transposed_weight_fails_at_the_smallest_sizes():
    failing = method(verify(Dense), "transposed")
    assert failing.verdict is Verdict.FAILS
    assert dict(failing.failures[0].sizes) == {"din": 1, "dout": 2, "b.0": 1}
    assert failing.failures[0].file == __file__


def test_the_sizes_that_a_constructor_takes_are_dims_of_its_methods():
    report = verify(Undeclared)
    assert str(method(report, "__call__")) == "Undeclared.__call__: proved for all din, dout, b"
    assert 'return: expected Float[Array, "b dout"]' in method(report, "wrong").failures[0].message


@pytest.mark.parametrize("cls", [Dense, Undeclared])
def test_an_instance_of_equal_sizes_hides_nothing(cls: type):
    instance = cls(4, 4, rngs=nnx.Rngs(0))
    before = jax.tree.map(jnp.copy, nnx.state(instance))
    graphdef, attributes = nnx.graphdef(instance), set(vars(instance))
    verdicts = [one.verdict for one in verify(instance).contracts]
    assert verdicts == [Verdict.PROVED, Verdict.FAILS]
    assert nnx.graphdef(instance) == graphdef
    assert set(vars(instance)) == attributes
    assert jax.tree.all(jax.tree.map(jnp.array_equal, before, nnx.state(instance)))


def test_a_bound_method_is_proved_alone():
    (contract,) = verify(Dense(4, 4, rngs=nnx.Rngs(0)).transposed).contracts
    assert contract.verdict is Verdict.FAILS


class Given(nnx.Module):
    """Its constructor takes arrays, so an instance is generalised by what its attributes declare."""

    w: nnx.Param[Float[Array, "i o"]]
    tables: nnx.List[nnx.Param[Float[Array, "o"]]]
    layer: nnx.Linear
    calls: nnx.Variable[Int[Array, ""]]

    def __init__(self, w):
        self.w = nnx.Param(w)
        self.tables = nnx.List([nnx.Param(jnp.zeros(w.shape[1]))])
        self.layer = nnx.Linear(w.shape[1], w.shape[1], rngs=nnx.Rngs(0))
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
        self.calls[...] += 1
        return self.layer(x @ self.w) + self.tables[0]

    def wrong(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
        return self.layer(x @ self.w[...].T)


def test_an_instance_without_a_constructor_of_sizes_is_generalised_by_its_attributes():
    report = verify(Given(jnp.ones((4, 4))))
    assert method(report, "__call__").verdict is Verdict.HOLDS
    assert "out_features = o" in method(report, "__call__").assumptions
    assert method(report, "wrong").verdict is Verdict.FAILS


def test_what_a_call_leaves_in_a_variable_is_held_to_the_annotation():
    report = verify(Norm)
    assert method(report, "__call__").verdict is Verdict.PROVED
    assert 'Norm, field mean: expected Float[Array, "c"]' in method(report, "declared").failures[0].message


def test_a_statistic_that_changes_its_shape_is_a_failure_without_an_annotation():
    (failure,) = method(verify(Norm), "undeclared").failures
    assert failure.message == "Norm.undeclared, BatchStat var: was f32[1], and is f32[2] after the call"


def loss(model: Dense, x: Float[Array, "b din"], y: Float[Array, "b dout"]) -> Float[Array, ""]:
    return jnp.mean((model(x) - y) ** 2)


@nnx.jit
def train_step(
    model: Dense, optimizer: nnx.Optimizer, rngs: nnx.Rngs, x: Float[Array, "b din"], y: Float[Array, "b dout"]
) -> Float[Array, ""]:
    noisy = x + rngs.noise.normal(x.shape)
    value, grads = nnx.value_and_grad(loss)(model, noisy, y)
    optimizer.update(model, grads)
    return value


def late_model(optimizer: nnx.ModelAndOptimizer[Dense], x: Float[Array, "b din"], model: Dense) -> Float[Array, ""]:
    assert optimizer.model is model
    grads = nnx.grad(lambda model: model(x).sum())(optimizer.model)
    optimizer.update(grads)
    return model(x).sum()


@pytest.mark.parametrize("function", [loss, train_step, late_model])
def test_functions_of_modules_optimizers_and_streams_are_proved(function: Callable[..., Any]):
    assert verify(function).proved


def wrong_step(model: Dense, optimizer: nnx.Optimizer, x: Float[Array, "b din"]) -> Float[Array, "b"]:
    losses, grads = nnx.value_and_grad(lambda model: (model(x).sum(), model(x).sum(axis=0)), has_aux=True)(model)
    optimizer.update(model, grads)
    return losses[1]


def test_a_step_that_returns_another_shape_fails():
    assert 'wrong_step, return: expected Float[Array, "b"]' in verify(wrong_step).failures[0].message


def scanned(cell: Dense, xs: Float[Array, "t b din"]) -> Float[Array, "t b dout"]:
    @nnx.scan(in_axes=(None, 0), out_axes=0)
    def run(cell: Dense, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        return cell(x)

    return run(cell, xs)


def ensemble(members: int, rngs: nnx.Rngs, x: Float[Array, "b din"]) -> Float[Array, "members b 3"]:
    @nnx.split_rngs(splits=members)
    @nnx.vmap
    def make(rngs):
        return Dense(x.shape[1], 3, rngs=rngs)

    models = make(rngs)
    return nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, x)


@pytest.mark.parametrize("function", [scanned, ensemble])
def test_modules_inside_transforms_hold(function: Callable[..., Any]):
    assert verify(function).ok


def generated(cell: Dense, x: Float[Array, "b din"]) -> Float[Array, "b din"]:
    return cell(x)


def test_dims_that_the_modules_methods_name_apart_are_never_joined():
    assert verify(generated).verdict is Verdict.FAILS


def anything(model: nnx.Module, x: Float[Array, "b d"]) -> Float[Array, "b k"]:
    return model(x)


def test_what_an_annotation_does_not_say_is_asked_for():
    (contract,) = verify(anything).contracts
    assert contract.verdict is Verdict.SKIPPED
    why = "the annotation Module does not say which arrays an instance has"
    assert contract.reason == f"model: {why}; pass it in `args`"


def test_an_instance_given_as_an_argument_is_used_as_it_is_and_left_as_it_was():
    model = Dense(4, 3, rngs=nnx.Rngs(0))
    model.calls = nnx.Variable(jnp.array(0))

    def counted(model: nnx.Module, x: Float[Array, "b d"]) -> Float[Array, "b 3"]:
        model.calls[...] += 1
        return model(x)

    report = verify(counted, args={"model": model})
    assert report.verdict is Verdict.HOLDS
    assert report.assumptions == ("d = 4",)
    assert int(model.calls[...]) == 0


shared = Dense(4, 4, rngs=nnx.Rngs(0))


def closes_over(x: Float[Array, "b i"]) -> Float[Array, "b o"]:
    return shared(x)


def test_a_model_from_outside_is_generalised():
    assert verify(closes_over).verdict is Verdict.HOLDS
    assert shared.w.shape == (4, 4)
    assert not isinstance(shared.w[...], jax.ShapeDtypeStruct)


class Cyclic(nnx.Module):
    def __init__(self, d: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((d,)))
        self.again, self.me = nnx.Dict(w=self.w), self

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "d"]:
        self.w[...] = 2 * x
        return self.me.again.w + x


def test_shared_variables_and_cycles_are_kept():
    assert verify(Cyclic).proved
    assert verify(Cyclic(3, rngs=nnx.Rngs(0))).proved


class Scaled(nnx.Module):
    def __init__(self, c: int, d: int):
        self.scale = nnx.Param(jnp.ones(c))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x * jax.lax.reshape(self.scale[...], (1, x.shape[1]))


def test_a_reshape_that_only_compiling_would_refuse_is_found():
    (failure,) = verify(Scaled).failures
    assert failure.message == "TypeError: cannot reshape array of shape (c,) into shape (1, d)"
    assert failure.line == Scaled.__call__.__code__.co_firstlineno + 1


class Positions(nnx.Module):
    def __init__(self, max_len: int, d: int, *, rngs: nnx.Rngs):
        self.table = nnx.Param(rngs.params.normal((max_len, d)))

    def __call__(self, x: Float[Array, "b s d"]) -> Float[Array, "b s d"]:
        return x + self.table[: x.shape[1]]


def test_what_a_program_needs_is_said_as_weakly_as_it_holds():
    report = verify(Positions)
    assert report.verdict is Verdict.HOLDS
    assert report.assumptions == ("s <= max_len",)


class Store(nnx.Dict):
    def __init__(self, n: int):
        super().__init__(a=nnx.Param(jnp.zeros(n)), b=nnx.Param(jnp.zeros(n)))

    def total(self) -> Float[Array, "n"]:
        return sum((value[...] for value in self.values()), jnp.zeros(()))


def test_a_container_has_its_items_and_nothing_else():
    assert verify(Store).proved


def votes(members: Batched[Dense, "n"], x: Float[Array, "b din"]) -> Float[Array, "n b dout"]:
    return nnx.vmap(lambda member, x: member(x), in_axes=(0, None))(members, x)


def votes_swapped(members: Batched[Dense, "n"], x: Float[Array, "b din"]) -> Float[Array, "b n dout"]:
    return nnx.vmap(lambda member, x: member(x), in_axes=(0, None))(members, x)


def test_a_batched_module_carries_its_axes():
    assert verify(votes).proved
    assert not verify(votes_swapped)


class Wrapper(nnx.Module):
    def __init__(self, base: nnx.Module | None, d: int, *, rngs: nnx.Rngs | None = None):
        self.base = base
        self.w = nnx.Param((rngs or nnx.Rngs(0)).normal((d, d)))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x @ self.w if self.base is None else self.base(x)


def test_an_optional_module_of_which_nothing_is_known_is_left_out():
    assert verify(Wrapper).proved


class Untyped(nnx.Module):
    """No parameter of its constructor has an annotation."""

    def __init__(self, din, dout, *, rngs):
        self.layer = nnx.Linear(din, dout, rngs=rngs)

    def __call__(self, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        return self.layer(x)


def test_parameters_called_like_dims_are_sizes():
    assert str(verify(Untyped)) == "Untyped.__call__: proved for all din, dout, b"


def test_an_alias_of_itself_can_be_read():
    scope = Scope({"Tree": dict[str, "Tree"] | Float[Array, "n"]})
    assert str(read("Tree", scope)) == 'dict[str, Any] | Float[Array, "n"]'


# ---------------------------------------------------------------------- while running


def test_a_boxs_annotation_is_checked_where_contracts_are():
    variable = nnx.Param(jnp.ones((2, 3)))
    assert check(variable, nnx.Param[Float[Array, "a b"]]) is variable
    with pytest.raises(ContractError) as caught:
        check(variable, nnx.Param[Float[Array, "a a"]])
    assert caught.value.what == "value should be f32[a=2,a=2], and is f32[2,3]"
    with pytest.raises(ContractError) as caught:
        check(variable, nnx.BatchStat[Float[Array, "a b"]])
    assert caught.value.what == 'value should be BatchStat[Float[Array, "a b"]], and is f32[2,3]'


def test_a_module_as_an_argument_is_asked_for_its_class_only():
    @contract
    def wants(model: Dense) -> int:
        return 1

    assert wants(Dense(2, 2, rngs=nnx.Rngs(0))) == 1
    with pytest.raises(ContractError) as caught:
        wants(Norm(2))
    assert caught.value.what.startswith("argument model of ")


# ---------------------------------------------------------------------- weft check

PROGRAM = """
    import jax.numpy as jnp
    from flax import nnx
    from jaxtyping import Array, Float

    class Dense(nnx.Module):
        w: nnx.Param[Float[Array, "i o"]]

        def __init__(self, i: int, o: int, *, rngs: nnx.Rngs):
            self.w = nnx.Param(rngs.params.normal((i, o)))

        def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
            return x @ self.w[...].T

    def total(model: Dense, x: Float[Array, "b i"]) -> Float[Array, "b"]:
        return (x @ model.w[...]).sum(axis=-1)

    model = Dense(4, 4, rngs=nnx.Rngs(0))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flax_program.py").write_text(textwrap.dedent(PROGRAM))
    return "flax_program.py"


def run(*command: str) -> str:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False).stdout


def test_files_of_flax_are_checked_over_weft(program: str):
    error, summary = run("-m", "weft.typecheck", "check", program).splitlines()
    assert error.startswith("flax_program.py:13: Dense.__call__: error: TypeError: dot_general requires")
    assert summary == "2 contracts: 1 proved, 0 hold, 1 fail"


def test_files_of_weft_are_checked(program: str, tmp_path: Path):
    (tmp_path / "weft_program.py").write_text(textwrap.dedent(PROGRAM).replace("from flax", "from weft"))
    checked = check_files(["weft_program.py"])
    assert [(line.level, line.name) for line in checked.lines] == [("error", "Dense.__call__")]


def test_modules_of_the_real_flax_are_listed_with_the_way_out(program: str):
    code = f"import flax.nnx; from weft.typecheck.command.linter import check; found = check([{program!r}]); "
    code += "print(*found.lines, found.summary, sep='\\n')"
    cls, function, summary = run("-c", code).splitlines()
    assert cls == (
        "flax_program.py:6: Dense: not checked: Dense is a Module of the real flax.nnx, and only those of weft.nnx "
        "can be proved"
    )
    assert function.startswith("flax_program.py:15: total: not checked: model: Dense is a Module of the real flax.nnx")
    assert summary.endswith("0 fail, 2 not checked")


def test_verify_refuses_an_object_of_the_real_flax(program: str):
    code = """
        import sys; sys.path.insert(0, ".")
        import flax_program
        from weft.typecheck import verify
        try:
            verify(flax_program.model)
        except TypeError as error:
            print(error)
    """
    assert run("-c", textwrap.dedent(code)).splitlines() == [
        "Dense is a Module of the real flax.nnx, and only those of weft.nnx can be proved",
        "  fix: call weft.nnx.install() before flax.nnx is imported; `weft check` does so by itself",
    ]


def test_checking_a_program_without_modules_loads_no_nnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(
        "from jaxtyping import Array, Float\ndef f(x: Float[Array, 'n']) -> Float[Array, 'n']:\n    return x\n"
    )
    checking = "import sys; from weft.typecheck.__main__ import main; main(['check', 'plain.py'])"
    assert run("-c", f"{checking}; print('weft.nnx' in sys.modules)").splitlines()[-1] == "False"


class MixedUp(nnx.Module):
    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.query = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: Float[Array, "b s width"]) -> Float[Array, "b s s"]:
        b, s, width = x.shape
        queries = self.query(x).reshape(b, self.heads, s, -1)
        keys = x.reshape(b, s, self.heads, width // self.heads)
        return jnp.einsum("bqhc,bkhc->bqk", queries, keys)


def test_a_number_of_heads_is_no_length_of_a_sequence():
    assert "Size of label 'h'" in str(verify(MixedUp))
