import flax.nnx as nnx

Array = nnx.Variable
