from .blocks import Block
from .common import nnx
from .model import CNN

__all__ = ["CNN", "Block", "nnx"]
