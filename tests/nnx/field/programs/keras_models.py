"""Keras on its JAX backend with NNX switched on: its layers are `nnx.Module`s, its variables `nnx.Variable`s.

Models are built in Keras's three ways, trained, asked, saved and loaded, and a layer is used as an NNX module. (Under
flax `layers.LSTM` cannot be trained so: it writes to its cell inside of the compiled step.)
"""

# ruff: noqa: E402  (Keras looks at the environment as it is imported)

import os
import tempfile

os.environ["KERAS_BACKEND"], os.environ["KERAS_NNX_ENABLED"] = "jax", "true"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from flax import nnx
from keras import layers

X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
Y = np.eye(3, dtype="float32")[np.argmax(X[:, :3], axis=1)]


class Scaled(layers.Layer):
    """A layer of a user's, with a weight that is not trained."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * self.scale


class Subclassed(keras.Model):
    def __init__(self, width=8, **options):
        super().__init__(**options)
        self.width = width
        self.hidden, self.scaled, self.out = layers.Dense(width, "tanh"), Scaled(), layers.Dense(3)

    def call(self, x, training=False):
        return self.out(self.scaled(self.hidden(x)))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def sequential():
    parts = [layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(3)]
    return keras.Sequential([layers.Input((6,)), *parts])


def functional():
    x = layers.Input((6,))
    steps = layers.GlobalAveragePooling1D()(layers.Conv1D(5, 2)(layers.Reshape((3, 2))(x)))
    heads = layers.MultiHeadAttention(2, 4)(*[layers.Reshape((2, 3))(x)] * 2)
    joined = layers.Concatenate()([steps, layers.Flatten()(layers.LayerNormalization()(heads))])
    return keras.Model(x, layers.Dense(3)(joined))


def shown(values):
    return " ".join(f"{float(np.abs(np.asarray(value)).sum()):.3f}" for value in values)


for name, make in (("sequential", sequential), ("functional", functional), ("subclassed", Subclassed)):
    keras.utils.set_random_seed(0)
    model = make()
    print(name, isinstance(model, nnx.Module), shown([model(X)]))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    history = model.fit(X, Y, batch_size=16, epochs=3, validation_split=0.25, verbose=0).history
    print({key: [round(value, 3) for value in values] for key, values in sorted(history.items())})
    evaluated, predicted = model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)
    print("evaluate", [round(value, 3) for value in evaluated], shown([predicted]))
    print("weights", len(model.trainable_variables), len(model.non_trainable_variables), shown(model.get_weights()))
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras", {"Subclassed": Subclassed, "Scaled": Scaled})
        print("loaded", np.allclose(loaded.predict(X, verbose=0), predicted, atol=1e-5))
    print("config", sorted(model.layers[0].get_config()))

layer = layers.Dense(4, name="alone")
layer.build((None, 6))
graphdef, state = nnx.split(layer, nnx.Variable, ...)[:2]
print("as nnx", len(jax.tree.leaves(state)), [type(leaf).__name__ for leaf in jax.tree.leaves(state)])
print("variables", layer.kernel.shape, layer.kernel.trainable, layer.kernel.path, layer.kernel.get_metadata("_name"))
layer.kernel.assign(jnp.ones((6, 4)))
print("assigned", shown([layer.kernel, layer(X)]))
