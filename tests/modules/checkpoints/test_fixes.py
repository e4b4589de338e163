"""Fix lines: what an error about a checkpoint advises mends that error."""

from __future__ import annotations

import ast
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft import CheckpointError, Checkpoints, Linear, load_checkpoint, load_orbax, save_checkpoint
from weft.modules.checkpoints import format as form

KEY = jax.random.key(0)
X = jnp.ones(2)


def trained(rate: Any) -> dict[str, Any]:
    model = Linear(2, 3, key=KEY)
    return {"model": model, "optimizer": weft.Optimizer(model, optax.adam(rate))}


# What is saved, what it is loaded into, what the fix line says, and the options that it names.
MISFITS: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
    "another learning rate": (trained(0.1), trained(0.2), "pass strict=False, which", {"strict": False}),
    "another schedule": (
        trained(optax.cosine_decay_schedule(0.1, 10)),
        trained(optax.cosine_decay_schedule(0.2, 10)),
        "pass strict=False, which",
        {"strict": False},
    ),
    "another dtype": (
        {"w": jnp.ones(2, jnp.bfloat16)},
        {"w": jnp.zeros(2)},
        'pass dtype="like", which',
        {"dtype": "like"},
    ),
    "a number for an array": ({"step": 3}, {"step": jnp.zeros((), int)}, 'pass dtype="like", which', {"dtype": "like"}),
    "another dtype and configuration": (
        Linear(2, 3, key=KEY),
        Linear(2, 3, key=KEY, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16),
        'pass strict=False, which .*, and dtype="like", which',
        {"strict": False, "dtype": "like"},
    ),
    "an array for None": ({"w": X, "b": X}, {"w": X, "b": None}, "pass partial=True, which", {"partial": True}),
    "another name": (
        {"encoder": Linear(2, 3, key=KEY)},
        {"body": Linear(2, 3, key=KEY)},
        r"pass rename=\{'encoder': 'body'\}",
        {"rename": {"encoder": "body"}},
    ),
    "something new": (
        {"w": jnp.ones(2)},
        {"w": jnp.ones(2), "new": jnp.ones(3)},
        "pass partial=True",
        {"partial": True},
    ),
    "something left over": (
        {"w": jnp.ones(2), "old": jnp.ones(3)},
        {"w": jnp.ones(2)},
        "pass partial=True",
        {"partial": True},
    ),
}


def loaders(tree: Any, folder: Path) -> list[Callable[..., Any]]:
    save_checkpoint(folder / "file", tree)
    with Checkpoints(folder / "run") as checkpoints:
        checkpoints.save(0, tree)
    return [
        lambda like, **options: load_checkpoint(folder / "file", like, **options),
        lambda like, **options: checkpoints.restore(like, **options),
        lambda like, **options: load_orbax(folder / "run" / "0", like, **options),
    ]


@pytest.mark.parametrize(("saved", "like", "fix", "options"), MISFITS.values(), ids=MISFITS.keys())
def test_the_options_that_an_error_advises_mend_it(
    saved: Any, like: Any, fix: str, options: dict[str, Any], tmp_path: Path
):
    for load in loaders(saved, tmp_path):
        with pytest.raises(CheckpointError, match=f"fix: {fix}"):
            load(like)
        restored = load(like, **options)
        restored = restored[0] if options.get("partial") else restored
        assert jax.tree.structure(restored) == jax.tree.structure(like)
        assert [leaf.dtype for leaf in jax.tree.leaves(restored)] == [leaf.dtype for leaf in jax.tree.leaves(like)]


def test_a_resumed_run_goes_on_with_its_own_learning_rate(tmp_path: Path):
    saved, resumed = trained(0.1), trained(0.2)
    gradient = weft.tree.map(jnp.ones_like, saved["model"])
    for load in loaders(saved, tmp_path):
        model, optimizer = load(resumed, strict=False).values()
        moved, _ = optimizer.update(model, gradient)
        expected, _ = resumed["optimizer"].update(resumed["model"], gradient)
        assert jnp.array_equal(moved.kernel, expected.kernel)


@pytest.mark.parametrize("numpy", [False, True])
def test_arrays_whose_shapes_one_does_not_know_are_loaded_by_what_the_error_writes(numpy: bool, tmp_path: Path):
    make: Any = np if numpy else jnp
    saved = {"buffer": make.ones(5, "float32"), "w": make.ones(2)}
    for load in loaders(saved, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            load({"buffer": make.zeros(0, "float32"), "w": make.zeros(2)})
        written = re.search(r"where (.*) may stand for an array, as at buffer$", caught.value.fix or "")
        assert written
        stand_in = eval(written[1], {"jax": jax, "np": np})
        assert load({"buffer": stand_in, "w": make.zeros(2)})["buffer"].tolist() == [1.0] * 5


def test_shapes_and_options_are_advised_together(tmp_path: Path):
    for load in loaders({"buffer": jnp.ones(5), **trained(0.1)}, tmp_path):
        with pytest.raises(CheckpointError, match=r"the saved shapes, .* as at buffer; pass strict=False, which"):
            load({"buffer": jnp.ones(3), **trained(0.2)})
        load({"buffer": jax.ShapeDtypeStruct((5,), "float32"), **trained(0.2)}, strict=False)


def test_where_no_option_helps_none_is_advised(tmp_path: Path):
    for load in loaders(Linear(2, 3, key=KEY), tmp_path):
        with pytest.raises(CheckpointError) as caught:
            load({"other": jnp.ones(7)})
        assert caught.value.fix == "load it into a tree that is constructed like the saved one"
        load(Linear(2, 3, key=jax.random.key(1)))


def test_integers_are_loaded_into_a_dtype_that_holds_them(tmp_path: Path):
    for load in loaders({"w": np.array([300])}, tmp_path):
        for small in (
            np.zeros(1, np.int8),
            jnp.zeros(1, jnp.int8),
            jax.device_put(jnp.zeros(1, jnp.int8), jax.devices()[1]),
        ):
            with pytest.raises(
                CheckpointError,
                match="int8 cannot hold these values of int64\n  at: w\n  fix: load into an array of a wider",
            ):
                load({"w": small}, dtype="like")
        assert load({"w": jnp.zeros(1, jnp.int16)}, dtype="like")["w"].tolist() == [300]


def test_what_jax_would_narrow_is_loaded_into_32_bits(tmp_path: Path):
    for load in loaders({"w": np.arange(2.0)}, tmp_path):
        with pytest.raises(CheckpointError, match='or load into arrays of 32 bits with dtype="like"'):
            load({"w": jax.ShapeDtypeStruct((2,), "float64")})
        assert load({"w": jnp.zeros(2)}, dtype="like")["w"].tolist() == [0.0, 1.0]


def test_no_dtype_is_answered_with_those_that_are(tmp_path: Path):
    for load in loaders({"w": jnp.ones(2)}, tmp_path):
        with pytest.raises(CheckpointError, match=r'fix: pass a floating dtype, to which .*, or dtype="like"'):
            load({"w": jnp.ones(2, jnp.bfloat16)}, dtype="int32")
        assert load({"w": jnp.ones(2)}, dtype="bfloat16")["w"].dtype == jnp.bfloat16


def test_renames_are_mended_as_their_errors_say(tmp_path: Path):
    saved, like = {"a": jnp.ones(2), "b": jnp.zeros(2)}, {"c": jnp.zeros(2)}
    for load in loaders(saved, tmp_path):
        with pytest.raises(CheckpointError, match=r"fix: write names as in the file: .*a, b"):
            load(like, rename={"x": "c"}, partial=True)
        assert load(like, rename={"a": "c"}, partial=True)[0]["c"].tolist() == [1.0, 1.0]
        with pytest.raises(CheckpointError, match="fix: rename all but one to None"):
            load(like, rename={"a": "c", "b": "c"})
        assert load(like, rename={"a": "c", "b": None})["c"].tolist() == [1.0, 1.0]
        with pytest.raises(CheckpointError, match="fix: map it to a string, or to None"):
            load(like, rename=lambda name: 3)
        assert load(like, rename=lambda name: {"a": "c"}.get(name))["c"].tolist() == [1.0, 1.0]


def test_what_cannot_be_stored_can_be_as_its_error_says(tmp_path: Path):
    def savers(tree: Any) -> list[Callable[[], object]]:
        return [
            lambda: save_checkpoint(tmp_path / "file", tree),
            lambda: checkpoints.save(len(checkpoints.steps), tree),
        ]

    donated = jnp.ones(2)
    returned = weft.jit(lambda x: x + 1, donate_argnums=0)(donated)
    ref = jax.new_ref(jnp.ones(2))
    masked = np.ma.MaskedArray(np.ones(2), [True, False])
    objects = np.array([1, 2], object)
    cases: list[tuple[Any, str, Any]] = [
        (donated, "save what the call returned", returned),
        (jax.ShapeDtypeStruct((2,), "float32"), "save arrays", jnp.ones(2)),
        (ref, r"save its value, ref\[...\]", ref[...]),
        (masked, "save its data and its mask", [masked.data, masked.mask]),
        (objects, "cast it", objects.astype(int)),
    ]
    with Checkpoints(tmp_path / "run") as checkpoints:
        for refused, fix, stored in cases:
            for save in savers({"w": refused}):
                with pytest.raises(CheckpointError, match=f"at: w\n  fix: {fix}"):
                    save()
            for save in savers({"w": stored}):
                save()
        for save in savers({"w": jnp.ones(2)}):
            with pytest.raises(CheckpointError, match="fix: save outside of jit"):
                jax.jit(lambda x: savers({"w": x})[0]())(1.0)
            save()


def test_checkpoints_of_a_run_are_mended_as_their_errors_say(tmp_path: Path):
    tree = {"w": jnp.ones(2)}
    with pytest.raises(CheckpointError, match="fix: keep=None keeps all, keep=1 the newest"):
        Checkpoints(tmp_path / "run", keep=0)
    Checkpoints(tmp_path / "run", keep=None)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="fix: give each run a folder"):
        Checkpoints(tmp_path / "file")
    (tmp_path / "run").mkdir()
    checkpoints = Checkpoints(tmp_path / "run", keep=1)
    with pytest.raises(CheckpointError, match="fix: save one first, or pass the folder and the step of one"):
        checkpoints.restore(tree)
    checkpoints.save(0, tree)
    checkpoints.restore(tree, 0)
    with pytest.raises(CheckpointError, match="fix: save a later step"):
        checkpoints.save(0, tree)
    checkpoints.save(1, tree)
    with Checkpoints(tmp_path / "run") as second:
        with pytest.raises(CheckpointError, match=r"fix: end or close that one first, or give each run .*; to read is"):
            second.save(2, tree)
        assert second.restore(tree)["w"].tolist() == [1.0, 1.0]
        checkpoints.close()
        second.save(2, tree)
    with pytest.raises(
        CheckpointError, match=r"fix: save before close\(\), or open the folder again: weft.Checkpoints\("
    ):
        checkpoints.save(3, tree)
    with weft.Checkpoints(tmp_path / "run") as again:
        again.save(3, tree)


class Twin:
    """A key of a mapping that prints as another one does."""

    def __init__(self, number: int):
        self.number = number

    def __lt__(self, other: Twin) -> bool:
        return self.number < other.number

    def __repr__(self) -> str:
        return "twin"


def test_names_are_mended_as_their_errors_say(tmp_path: Path):
    with pytest.raises(CheckpointError, match="at: __metadata__\n  fix: rename it"):
        save_checkpoint(tmp_path / "file", {"__metadata__": jnp.ones(2)})
    with pytest.raises(CheckpointError, match=r"two arrays have the same path\n  at: \[twin\]\n  fix: rename one"):
        save_checkpoint(tmp_path / "file", {Twin(1): jnp.ones(2), Twin(2): jnp.ones(2)})
    loaders({"metadata": jnp.ones(2), "first": jnp.ones(2), "second": jnp.ones(2)}, tmp_path)


def test_weights_and_their_names_are_mended_as_their_errors_say(tmp_path: Path):
    model = {"layers": [Linear(1, 1, key=KEY)]}
    weights = {"h.0.weight": np.ones((1, 1)), "h.0.bias": np.ones(1)}
    with pytest.raises(CheckpointError, match=r"fix: write one `\*` for each number"):
        weft.import_weights(model, weights, rename={"h.*": "layers[0]"})
    weft.import_weights(model, weights, rename={"h.*": "layers[*]"})
    save_checkpoint(tmp_path / "file", {"weight": np.ones((1, 1), np.float32), "bias": np.ones(1, np.float32)})
    with pytest.raises(CheckpointError, match="fix: pass each file once"):
        weft.import_weights(Linear(1, 1, key=KEY), [tmp_path / "file"] * 2)
    weft.import_weights(Linear(1, 1, key=KEY), [tmp_path / "file"])
    save_checkpoint(tmp_path / "file", {"step": 3})
    with pytest.raises(CheckpointError, match="fix: load weft's own files with load_checkpoint"):
        weft.import_weights(Linear(1, 1, key=KEY), tmp_path / "file")
    assert load_checkpoint(tmp_path / "file", {"step": 0}) == {"step": 3}


def test_what_is_no_regular_file_is_copied_to_one(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for load in (load_checkpoint, weft.import_weights):
        order = (pipe, Linear(1, 1, key=KEY)) if load is load_checkpoint else (Linear(1, 1, key=KEY), pipe)
        with pytest.raises(CheckpointError, match=r"is not a regular file\n  fix: write its content to a file"):
            load(*order)


def test_a_name_as_long_as_file_systems_take_is_saved(tmp_path: Path):
    file = tmp_path / ("n" * 255)
    for value in (1.0, 2.0):
        save_checkpoint(file, {"w": jnp.full(2, value)})
    assert load_checkpoint(file, {"w": jnp.zeros(2)})["w"].tolist() == [2.0, 2.0]
    assert [place.name for place in tmp_path.iterdir()] == [file.name]
    with pytest.raises(OSError, match="File name too long"):
        save_checkpoint(tmp_path / ("n" * 256), {"w": jnp.zeros(2)})


def test_a_header_that_is_too_long_is_mended_by_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(form, "LONGEST_HEADER", 1500)
    tree = {f"w{i}": jnp.ones(2) for i in range(20)}
    with pytest.raises(CheckpointError, match=r"the header has \d+ bytes[^$]*fix: save the tree in several files"):
        save_checkpoint(tmp_path / "file", tree)
    assert not (tmp_path / "file").exists()
    for name, array in tree.items():
        save_checkpoint(tmp_path / name, {name: array})


def test_weights_are_reported_where_strict_false_helps_and_only_there(tmp_path: Path):
    model = Linear(2, 3, key=KEY)
    with pytest.raises(CheckpointError, match="or strict=False reports"):
        weft.import_weights(model, {"weight": np.ones((3, 2)), "other": np.ones(2)})
    report = weft.import_weights(model, {"weight": np.ones((3, 2)), "other": np.ones(2)}, strict=False)[1]
    assert report == weft.LoadReport(("bias",), ("other",))
    with pytest.raises(CheckpointError) as caught:
        weft.import_weights(model, {"weight": np.ones((2, 3)), "bias": np.ones(3)})
    assert "strict" not in str(caught.value)
    weft.import_weights(
        model, {"weight": np.ones((2, 3)), "bias": np.ones(3)}, layout={Linear: {"weight": ("kernel", None)}}
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda folder: load_checkpoint(folder / "file", {"w": jnp.ones(3)}),
        lambda folder: save_checkpoint(folder / "file", {"w": jax.ShapeDtypeStruct((2,), "float32")}),
        lambda folder: load_orbax(folder / "run" / "0", {"w": jnp.ones(3)}),
        lambda folder: Checkpoints(folder / "run").restore({"w": jnp.ones(3)}),
        lambda folder: Checkpoints(folder / "run").save(0, {}),
        lambda folder: weft.import_weights(Linear(1, 1, key=KEY), folder / "file"),
    ],
)
def test_tracebacks_show_the_users_frames_alone(call: Callable[[Path], object], tmp_path: Path):
    loaders({"w": jnp.ones(2)}, tmp_path)
    with pytest.raises(CheckpointError) as caught:
        call(tmp_path)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [Path(frame.filename).name for frame in frames] == [Path(__file__).name] * 2


# These advise another file, step, version or package: there is nothing to try.
UNTRIED = [
    "convert the file with the program that wrote it",
    "load it with the version of weft that wrote it, or a newer one",
    "update weft",
    "use another checkpoint",
    "pass a file that save_checkpoint wrote, or another safetensors file",
    "restore another step",
    "pass the folder of a step",
    "pip install 'weft-jax[orbax]'",
]


def test_every_fix_line_of_the_room_is_tried():
    """Each text that is given as `fix=` is in this folder's tests, by its first words."""
    room = Path(weft.__file__).parent / "modules" / "checkpoints"
    tests = " ".join(file.read_text() for file in Path(__file__).parent.glob("*.py")).replace("\\", "")
    fixes = [
        "".join(
            part.value
            for part in ast.walk(keyword.value)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )
        for file in room.glob("*.py")
        for keyword in ast.walk(ast.parse(file.read_text()))
        if isinstance(keyword, ast.keyword) and keyword.arg == "fix"
    ]
    assert len(fixes) > 25
    assert [fix for fix in fixes if fix and " ".join(re.split(r"[:,(;]", fix)[0].split()[:4]) not in tests] == []


def test_an_array_where_the_other_has_none_is_said_once(tmp_path: Path):
    for saved, like, line in (
        ({"w": X}, {"w": None}, "w: float32[2], not None"),
        ({"w": None}, {"w": X}, "w: None, not float32[2]"),
        ({"w": X}, {"w": "text"}, "w: float32[2], not 'text'"),
        ({"w": X}, {"v": X}, "v: nothing, not float32[2]"),
    ):
        save_checkpoint(tmp_path / "file", saved)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path / "file", like)
        assert [place for place in caught.value.at if place.startswith(line[:2])] == [line]
