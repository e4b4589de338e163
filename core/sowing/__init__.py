"""What a function sows and what is perturbed in it, carried out of every transform by re-interpreting its jaxpr."""
