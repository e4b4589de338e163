"""`sow`, `perturb` and `capture`: carries intermediate values out of transforms, by re-interpreting the jaxpr."""
