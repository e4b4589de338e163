"""rl-blox, as its users call it: each algorithm trains for some steps, with target networks, ensembles and replay."""

import copy
import inspect

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from rl_blox.algorithm.a2c import train_a2c
from rl_blox.algorithm.actor_critic import train_ac
from rl_blox.algorithm.cmaes import train_cmaes
from rl_blox.algorithm.ddpg import create_ddpg_state, train_ddpg
from rl_blox.algorithm.ddqn import train_ddqn
from rl_blox.algorithm.dqn import train_dqn
from rl_blox.algorithm.mrq import create_mrq_state, train_mrq
from rl_blox.algorithm.nature_dqn import train_nature_dqn
from rl_blox.algorithm.per import train_ddqn_per
from rl_blox.algorithm.pets import create_pets_state, train_pets
from rl_blox.algorithm.pets_reward_models import pendulum_reward
from rl_blox.algorithm.ppo import train_ppo
from rl_blox.algorithm.reinforce import (
    create_policy_gradient_continuous_state,
    create_policy_gradient_discrete_state,
    train_reinforce,
)
from rl_blox.algorithm.sac import EntropyControl, create_sac_state, train_sac
from rl_blox.algorithm.td3 import create_td3_state, train_td3
from rl_blox.algorithm.td3_lap import train_td3_lap
from rl_blox.algorithm.td7 import create_td7_state, train_td7
from rl_blox.blox.function_approximator.gaussian_mlp import GaussianMLP
from rl_blox.blox.function_approximator.layer_norm_mlp import LayerNormMLP
from rl_blox.blox.function_approximator.mlp import MLP
from rl_blox.blox.function_approximator.policy_head import DeterministicTanhPolicy, SoftmaxPolicy
from rl_blox.blox.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer


def in_lists(network, name, value):
    """What a user of flax 0.12 writes into rl-blox, whose networks keep layers in plain lists."""
    nnx.Module.__setattr__(network, name, nnx.List(value) if isinstance(value, list) else value)


for one in (MLP, GaussianMLP, LayerNormMLP):
    one.__setattr__ = in_lists

SMALL = {"policy_hidden_nodes": [8, 8], "q_hidden_nodes": [16, 16]}
SHORT = {"total_timesteps": 60, "learning_starts": 40, "batch_size": 8, "seed": 1}


def environment(name):
    env = gym.make(name, max_episode_steps=25)
    env.action_space.seed(0)
    env.reset(seed=0)  # what policy gradients sample resets it without a seed
    return env


def told(name, *results):
    """The type of each result, and its numbers: mean size by kind of Variable."""
    for result in results:
        kinds = {}
        for _, leaf in nnx.to_flat_state(nnx.state(result)):
            value = jnp.asarray(leaf[...])
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                continue
            kinds.setdefault(leaf.type.__name__, []).append(np.abs(np.asarray(value, np.float64)).mean())
        numbers = " ".join(f"{kind} {len(means)} {np.mean(means):.5f}" for kind, means in sorted(kinds.items()))
        print(f"{name}: {type(result).__name__} {numbers}")


def trained(name, train, *arguments, **options):
    """Trains in silence, and tells of each object that comes back."""
    known = inspect.signature(train).parameters
    result = train(*arguments, **{key: value for key, value in options.items() if key in known}, progress_bar=False)
    told(name, *(part for part in result if isinstance(part, nnx.Module | nnx.Optimizer)))
    return result


def q_learners():
    for train, buffer in (
        (train_dqn, ReplayBuffer),
        (train_nature_dqn, ReplayBuffer),
        (train_ddqn, ReplayBuffer),
        (train_ddqn_per, PrioritizedReplayBuffer),
    ):
        env = environment("CartPole-v1")
        q = MLP(4, 2, [10], "relu", nnx.Rngs(42))
        optimizer = nnx.Optimizer(q, optax.rprop(3e-4), wrt=nnx.Param)
        options = SHORT | {"learning_starts": 0, "target_update_frequency": 10}
        trained(train.__name__, train, q, env, buffer(100, discrete_actions=True), optimizer, **options)


def actors_with_critics():
    env = environment("Pendulum-v1")
    state = create_ddpg_state(env, **SMALL, seed=42)
    trained("ddpg", train_ddpg, env, *state, **SHORT)
    for train in (train_td3, train_td3_lap):
        trained(train.__name__, train, env, *create_td3_state(env, **SMALL, seed=42), **SHORT)
    state = create_sac_state(env, **SMALL, seed=42)
    control = EntropyControl(env, 0.2, True, 1e-3)
    trained("sac", train_sac, env, *state, entropy_control=control, **SHORT)


def representations():
    env = environment("Pendulum-v1")
    state = create_td7_state(
        env,
        n_embedding_dimensions=8,
        state_embedding_hidden_nodes=[8],
        state_action_embedding_hidden_nodes=[8],
        policy_sa_encoding_nodes=8,
        q_sa_encoding_nodes=8,
        **SMALL,
    )
    trained("td7", train_td7, env, *state, **SHORT, target_delay=10)
    encoder = {"encoder_zs_dim": 8, "encoder_za_dim": 8, "encoder_zsa_dim": 8, "encoder_hidden_nodes": [8, 8]}
    state = create_mrq_state(env, **SMALL, **encoder)
    trained("mrq", train_mrq, env, *state, **SHORT, target_delay=10)


def policy_gradients():
    env = environment("Pendulum-v1")
    steps = {"total_timesteps": 60, "steps_per_update": 20, "seed": 1, "policy_gradient_steps": 2}
    for name, train in (("reinforce", train_reinforce), ("actor critic", train_ac)):
        trained(name, train, env, *create_policy_gradient_continuous_state(env, seed=42), **steps)
    state = create_policy_gradient_discrete_state(environment("CartPole-v1"), seed=42)
    trained("reinforce, discrete", train_reinforce, environment("CartPole-v1"), *state, **steps)
    vector = gym.vector.SyncVectorEnv([lambda: environment("Pendulum-v1")] * 2)
    state = create_policy_gradient_continuous_state(env, seed=42)
    trained("a2c", train_a2c, gym.wrappers.vector.RecordEpisodeStatistics(vector), *state, **steps)
    same_step = gym.vector.AutoresetMode.SAME_STEP
    vector = gym.vector.SyncVectorEnv([lambda: environment("CartPole-v1")] * 2, autoreset_mode=same_step)
    actor, critic = (MLP(4, outputs, [10], "relu", nnx.Rngs(1)) for outputs in (2, 1))
    actor = SoftmaxPolicy(actor)
    optimizers = [nnx.Optimizer(model, optax.rprop(3e-4), wrt=nnx.Param) for model in (actor, critic)]
    trained("ppo", train_ppo, vector, actor, critic, *optimizers, iterations=3, batch_size=16)


def models_and_searches():
    env = environment("Pendulum-v1")
    dynamics = create_pets_state(env, seed=0, n_ensemble=2, hidden_nodes=(8, 8), batch_size=8)
    search = {"plan_horizon": 5, "n_particles": 4, "n_samples": 16, "n_opt_iter": 2}
    learning = {"total_timesteps": 40, "learning_starts": 30, "n_steps_per_iteration": 10, "seed": 1}
    train_pets(env, pendulum_reward, dynamics, **search, **learning, progress_bar=False)
    told("pets", dynamics.model, dynamics.optimizer)
    policy = DeterministicTanhPolicy(MLP(3, 1, [4], "relu", rngs=nnx.Rngs(1)), env.action_space)
    options = {"n_samples_per_update": 4, "variance": 0.3, "active": False, "total_episodes": 2, "seed": 1}
    policy, fitness, _ = train_cmaes(env, policy, **options, progress_bar=False)
    told(f"cma-es {float(fitness):.3f}", policy)


def layers():
    """The networks as such, and copies of them."""
    network = LayerNormMLP(3, 2, [8, 8], "tanh", rngs=nnx.Rngs(0))
    gaussian = GaussianMLP(False, 3, 2, [8], "swish", nnx.Rngs(0))
    x = jnp.linspace(-1, 1, 12).reshape(4, 3)
    for model in (network, gaussian, copy.deepcopy(network), nnx.clone(gaussian)):
        y = model(x)
        print(type(model).__name__, *(f"{part.shape} {float(jnp.abs(part).mean()):.5f}" for part in jax.tree.leaves(y)))
        print(*("/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model))))


if __name__ == "__main__":
    q_learners()
    actors_with_critics()
    representations()
    policy_gradients()
    models_and_searches()
    layers()
