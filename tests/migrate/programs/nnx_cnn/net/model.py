from .blocks import Block
from .common import nnx


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.blocks = nnx.Sequential(Block(1, 4, rngs=rngs), Block(4, 8, rngs=rngs))
        self.head = nnx.Linear(32, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.blocks(x).reshape(x.shape[0], -1))
