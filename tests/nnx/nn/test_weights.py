"""LoRA, LoRALinear, WeightNorm and SpectralNorm are flax's: state, outputs, gradients, weights after calls if asked."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from jax.nn import initializers
from weft import nnx
from weft.nnx.config import config
from weft.nnx.interop.installing import twin_module
from weft.nnx.objects.attributes import is_data
from weft.nnx.objects.stability import is_stable

from ..agreement import IS_FOLLOWED
from .twins import assert_equal, assert_same_state, attributes, twins

# Statistics of fewer bits than the weights: flax writes them with a warning.
pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),
]

NORMAL = initializers.normal(0.5)


class Both:
    """The names of both libraries' parameter types."""

    @staticmethod
    def special(library):
        return type("Special", (library.Param,), {})


def x_of(*shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(7), shape).astype(dtype)


def assert_same_attributes(theirs, ours):
    their_attributes, our_attributes = attributes(flax_nnx, theirs), attributes(nnx, ours)
    assert list(their_attributes) == list(our_attributes)
    assert {k: v for k, v in their_attributes.items() if v is not None} == {
        k: v for k, v in our_attributes.items() if v is not None
    }


# ------------------------------------------------------------------------------------------------- LoRA


def halves(args, dtype=None):
    return tuple(jnp.asarray(value, jnp.bfloat16) for value in args)


HALF = {"lora_dtype": jnp.bfloat16, "lora_param_dtype": jnp.bfloat16}
ADAPTERS = {
    "plain": lambda n: n.LoRA(3, 2, 4, rngs=n.Rngs(0)),
    "drawn": lambda n: n.LoRA(3, 2, 4, b_initializer=NORMAL, rngs=n.Rngs(0)),
    "base": lambda n: n.LoRA(3, 2, 4, base_module=n.Linear(3, 4, rngs=n.Rngs(1)), b_initializer=NORMAL, rngs=n.Rngs(0)),
    "half": lambda n: n.LoRA(3, 2, 4, b_initializer=NORMAL, dtype=jnp.bfloat16, rngs=n.Rngs(0)),
    "half base": lambda n: n.LoRA(
        *(3, 2, 4), base_module=n.Linear(3, 4, rngs=n.Rngs(1)), dtype=jnp.bfloat16, rngs=n.Rngs(0)
    ),
    "half parameters": lambda n: n.LoRA(3, 2, 4, b_initializer=NORMAL, param_dtype=jnp.bfloat16, rngs=n.Rngs(0)),
    "own promotion": lambda n: n.LoRA(3, 2, 4, b_initializer=NORMAL, promote_dtype=halves, rngs=n.Rngs(0)),
    "metadata": lambda n: n.LoRA(3, 2, 4, a_metadata={"note": "a"}, b_metadata={"note": "b"}, rngs=n.Rngs(0)),
    "own kind": lambda n: n.LoRA(3, 2, 4, lora_param_type=Both.special(n), rngs=n.Rngs(0)),
    "linear": lambda n: n.LoRALinear(3, 4, lora_rank=2, b_initializer=NORMAL, rngs=n.Rngs(0)),
    "linear, half": lambda n: n.LoRALinear(
        *(3, 4),
        lora_rank=2,
        b_initializer=NORMAL,
        lora_dtype=jnp.bfloat16,
        lora_param_dtype=jnp.bfloat16,
        rngs=n.Rngs(0),
    ),
    "linear, options": lambda n: n.LoRALinear(
        *(3, 4), lora_rank=2, use_bias=False, kernel_init=NORMAL, a_metadata={"note": "a"}, rngs=n.Rngs(0)
    ),
}


@pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)
def test_an_adapter_is_made_and_called_like_flaxs(make):
    theirs, ours = twins(make)
    assert_same_state(theirs, ours)
    assert_same_attributes(theirs, ours)
    for x in (x_of(2, 3), x_of(2, 5, 3), x_of(3), x_of(2, 3, dtype=jnp.bfloat16)):
        y = theirs(x)
        assert_equal(y, ours(x), 2e-2 if y.dtype == jnp.bfloat16 or x.dtype == jnp.bfloat16 else 1e-2)
    assert_same_state(theirs, ours)


def squares(model, x):
    return (model(x) ** 2).sum()


@pytest.mark.parametrize("name", ["drawn", "base", "linear"])
def test_adapters_are_trained_like_flaxs_alone(name):
    theirs, ours = twins(ADAPTERS[name])
    x = x_of(2, 3)
    assert_equal(theirs(x), ours(x), 1e-6)
    gradients = [
        library.jit(library.grad(squares, argnums=library.DiffState(0, library.LoRAParam)))(model, x)
        for library, model in ((flax_nnx, theirs), (nnx, ours))
    ]
    assert_equal(*gradients, 1e-5)
    assert len(jax.tree.leaves(gradients[1])) == 2


def test_the_state_of_a_linear_fits_one_with_an_adapter():
    linear, adapted = nnx.Linear(3, 4, rngs=nnx.Rngs(5)), nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
    nnx.update(adapted, nnx.state(linear))
    assert_equal(linear(x_of(2, 3)), adapted(x_of(2, 3)), 1e-6)


def test_an_adapter_hands_further_arguments_to_its_base():
    class Base(nnx.Module):
        def __call__(self, x, *, factor):
            return jnp.ones(4) * factor

    layer = nnx.LoRA(3, 2, 4, base_module=Base(), rngs=nnx.Rngs(0))
    assert layer(x_of(3), factor=3.0).tolist() == [3.0] * 4


# ------------------------------------------------------------------------------------------------- norms of weights


class Stream:
    """A scale's initializer that draws from the stream that it is given."""

    def __call__(self, stream, shape):
        return jax.random.uniform(stream(), shape)


def linear(n):
    return n.Linear(4, 5, kernel_init=NORMAL, rngs=n.Rngs(1))


def conv(n):
    return n.Conv(2, 3, (2, 2), kernel_init=NORMAL, rngs=n.Rngs(1))


def several(n):
    return n.Sequential(linear(n), n.relu, n.Linear(5, 2, param_dtype=jnp.bfloat16, rngs=n.Rngs(2)))


WEIGHT_NORMS = {
    "plain": (linear, {}),
    "conv": (conv, {}),
    "several": (several, {}),
    "other axis": (conv, {"feature_axes": (0, -1)}),
    "axes out of order": (conv, {"feature_axes": (3, 0)}),
    "all axes": (linear, {"feature_axes": None}),
    "all features": (linear, {"feature_axes": (0, 1)}),
    "no scale": (linear, {"use_scale": False}),
    "own stream": (linear, {"scale_init": Stream()}),
    "ignores it": (linear, {"scale_init": lambda stream, shape: jnp.full(shape, 2.0)}),
    "epsilon": (linear, {"epsilon": 0.5}),
    "half": (linear, {"dtype": jnp.bfloat16}),
    "biases": (linear, {"variable_filter": lambda path, value: "bias" in path, "feature_axes": None}),
}
SPECTRAL_NORMS = {
    "plain": (linear, {}),
    "conv": (conv, {}),
    "several": (several, {}),
    "steps": (linear, {"n_steps": 3}),
    "no steps": (linear, {"n_steps": 0}),
    "no updates": (linear, {"update_stats": False}),
    "epsilon": (linear, {"epsilon": 0.1}),
    "half": (linear, {"dtype": jnp.bfloat16}),
    "half statistics": (linear, {"param_dtype": jnp.bfloat16}),
    "matrices only": (linear, {"error_on_non_matrix": True}),
}
NORMS = [
    pytest.param(name, *row, id=f"{name}: {key}")
    for name, rows in (("WeightNorm", WEIGHT_NORMS), ("SpectralNorm", SPECTRAL_NORMS))
    for key, row in rows.items()
]


@pytest.fixture
def faults(monkeypatch):
    """Weights are written into the Params, as flax writes them."""
    monkeypatch.setattr(config, "nnx_flax_faults", True)


def norms(name, inner, options):
    def make(library):
        rngs = library.Rngs(3)
        return getattr(library, name)(inner(library), **options, rngs=rngs), rngs

    (theirs, their_rngs), (ours, our_rngs) = twins(make)
    assert_same_state(their_rngs, our_rngs)
    return theirs, ours


def skip_other_scales(name, options):
    if name == "WeightNorm" and options.get("use_scale", True) and not IS_FOLLOWED:
        pytest.skip("weft.nnx follows flax 0.12.12, whose scales are Params; in this older flax they are arrays")


def input_of(inner):
    return x_of(2, 5, 5, 2) if inner is conv else x_of(2, 4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "inner", "options"), NORMS)
def test_weights_are_normalised_like_flaxs(name, inner, options, faults):
    skip_other_scales(name, options)
    theirs, ours = norms(name, inner, options)
    assert_same_state(theirs, ours, 1e-6)
    assert_same_attributes(theirs, ours)
    x = input_of(inner)
    tolerance = 2e-2 if inner is several or "dtype" in str(options) else 1e-5
    for _ in range(2):
        assert_equal(theirs(x), ours(x), tolerance)
        assert_same_state(theirs, ours, tolerance)
    kernels = [leaf.get_value() for path, leaf in nnx.to_flat_state(nnx.state(ours)) if "layer_instance" in path]
    assert all(isinstance(kernel, jax.Array) for kernel in kernels)


@pytest.mark.parametrize(("name", "inner"), [("WeightNorm", linear), ("SpectralNorm", linear), ("SpectralNorm", conv)])
def test_compiled_steps_and_gradients_are_flaxs(name, inner, faults):
    skip_other_scales(name, {})
    theirs, ours = norms(name, inner, {})
    x = input_of(inner)
    for _ in range(2):
        results = [
            library.jit(library.value_and_grad(lambda model, x: (model(x) ** 3).sum(), argnums=(0, 1)))(model, x)
            for library, model in ((flax_nnx, theirs), (nnx, ours))
        ]
        assert_equal(*results, 1e-4)
        assert_same_state(theirs, ours, 1e-5)


def test_train_and_eval_switch_spectral_norm(faults):
    theirs, ours = norms("SpectralNorm", linear, {})
    x = x_of(2, 4)
    for act in (lambda m: m.eval(), lambda m: m(x), lambda m: m.train(), lambda m: m(x), lambda m: m(x, False)):
        act(theirs), act(ours)
        assert_same_state(theirs, ours, 1e-5)
    assert_equal(theirs(x, update_stats=True), ours(x, update_stats=True), 1e-5)


def test_a_normalised_weight_has_length_or_largest_singular_value_one():
    _, weight = norms("WeightNorm", linear, {})
    assert_equal(jnp.ones(5), jnp.linalg.norm(weight(jnp.eye(4)), axis=0), 1e-5)
    _, spectral = norms("SpectralNorm", linear, {"n_steps": 100})
    assert_equal(jnp.ones(()), jnp.linalg.norm(spectral(jnp.eye(4)), 2), 1e-4)


@pytest.mark.parametrize("options", [{"ref": False}, {"ref": True}, {"hijax": True}], ids=str)
@pytest.mark.parametrize("name", ["WeightNorm", "SpectralNorm"])
def test_a_call_leaves_the_weights_what_they_were(name, options):
    with nnx.var_defaults(**options):
        layer = getattr(nnx, name)(linear(nnx), rngs=nnx.Rngs(0))
    before = jnp.asarray(layer.layer_instance.kernel[...])
    first = layer(x_of(2, 4))
    assert (layer.layer_instance.kernel[...] == before).all()
    with pytest.raises(TypeError):
        layer(jnp.ones((2, 3)))
    assert (layer.layer_instance.kernel[...] == before).all()
    assert not (first == layer.layer_instance(x_of(2, 4))).all()


def test_what_the_layer_writes_into_its_weight_itself_stays():
    class Clipped(nnx.Linear):
        def __call__(self, x):
            y = super().__call__(x)
            self.kernel[...] = jnp.zeros((4, 5))
            return y

    layer = nnx.WeightNorm(Clipped(4, 5, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    layer(x_of(2, 4))
    assert not layer.layer_instance.kernel[...].any()


def test_a_scale_may_be_drawn_by_an_initializer_of_jax():
    # flax gives a stream where JAX's initializers take a key.
    with pytest.raises(TypeError):
        flax_nnx.WeightNorm(linear(flax_nnx), scale_init=NORMAL, rngs=flax_nnx.Rngs(0))
    scale = nnx.WeightNorm(linear(nnx), scale_init=NORMAL, rngs=nnx.Rngs(0)).scales["kernel",]
    assert len(set(scale.tolist())) == 5


@pytest.mark.parametrize("name", ["LoRA", "LoRALinear", "WeightNorm", "SpectralNorm"])
def test_constructors_and_calls_have_flaxs_parameters_and_defaults(name):
    for method in ("__init__", "__call__"):
        expected = inspect.signature(getattr(getattr(flax_nnx, name), method)).parameters
        actual = inspect.signature(getattr(getattr(nnx, name), method)).parameters
        assert list(expected) == list(actual), method
        for parameter in expected.values():
            assert parameter.kind == actual[parameter.name].kind, parameter
            if isinstance(parameter.default, (bool, int, float, str, tuple, type(None))):
                assert actual[parameter.name].default == parameter.default, parameter


@pytest.mark.parametrize("name", ["base", "linear"])
def test_what_an_adapter_keeps_cannot_change_behind_a_plans_back(name):
    layer = ADAPTERS[name](nnx)
    assert [key for key, value in vars(layer).items() if not (is_data(value) or is_stable(value))] == []


def test_the_module_of_adapters_has_what_programs_import_from_it():
    module = twin_module("flax.nnx.nn.lora")
    assert (module.LoRA, module.LoRALinear, module.LoRAParam) == (nnx.LoRA, nnx.LoRALinear, nnx.LoRAParam)
    key = jax.random.key(0)
    assert_equal(initializers.he_uniform()(key, (3, 2)), module.default_a_initializer(key, (3, 2)))
    assert_equal(jnp.zeros((2, 3)), module.default_b_initializer(key, (2, 3)))
    assert twin_module("flax.nnx.nn.normalization").WeightNorm is nnx.WeightNorm


def spectral_of_new():
    layer = nnx.SpectralNorm(linear(nnx), rngs=nnx.Rngs(0))
    layer.layer_instance.other = nnx.Param(jnp.ones((2, 2)))
    return layer


def weight_of_new():
    layer = nnx.WeightNorm(several(nnx), rngs=nnx.Rngs(0))
    del layer.scales["layers", 2, "kernel"]
    return layer


def adapter(**options):
    return nnx.LoRA(3, 2, 4, **{"rngs": nnx.Rngs(0), **options})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: adapter(rngs=3), TypeError, "from nnx.Rngs, not from int"),
        (lambda: adapter(base_module=nnx.List([]))(x_of(3)), ValueError, "must be callable, got a List"),
        (lambda: adapter()(x_of(5)), TypeError, "LoRA takes 3 features on the last axis, not 5"),
        (
            lambda: nnx.SpectralNorm(conv(nnx), error_on_non_matrix=True, rngs=nnx.Rngs(0)),
            ValueError,
            r"error_on_non_matrix is True, but this weight is 4D(.|\n)*kernel",
        ),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("make", "message"), [(spectral_of_new, "no singular vector"), (weight_of_new, "no scale")])
def test_a_weight_that_a_norm_does_not_know_is_refused_and_nothing_is_changed(make, message):
    layer = make()
    before = nnx.to_pure_dict(nnx.state(layer))
    with pytest.raises(RuntimeError, match=message):
        layer(x_of(2, 4))
    assert_equal(before, nnx.to_pure_dict(nnx.state(layer)))
