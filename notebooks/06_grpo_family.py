# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The GRPO family: what the algorithms change
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - how rewards of a group become *advantages*, and what each algorithm changes in that;
# - how to compare algorithms on one task, over several seeds;
# - how to make an algorithm of your own by changing one part.
#
# **Time:** about 2 minutes on two CPU cores, 1 minute with the fast preset; no accelerator needed. On a TPU it has not
# been measured.

# %%
# Installs agentlab where it is missing, and changes nothing else.
if not __import__("importlib.util").util.find_spec("agentlab"):
    # %pip install -q $(ls agentlab-*.whl /kaggle/input/*/agentlab-*.whl 2>/dev/null)

# %%
import agentlab as al

PRESET = "auto"  # or "fast" (seconds, nothing to download), "cpu", "tpu"
preset = al.notebook.preset(PRESET)
preset

# %%
import itertools
from dataclasses import replace

import numpy as np

from agentlab import viz

FAST = preset == "fast"

# %% [markdown]
# ## An algorithm is a value
#
# `al.algorithms` holds values made of functions. Printing one shows its parts.

# %%
print(al.algorithms.grpo)

# %% [markdown]
# The parts in which the family differs:
#
# | algorithm | advantage of an episode | what is clipped | weight of a token |
# | --- | --- | --- | --- |
# | `grpo` | (reward − mean) / deviation of its group | ratio of each token | equal for each episode |
# | `dr_grpo` | reward − mean | ratio of each token | the same for all, whatever the length |
# | `dapo` | as `grpo` | ratio of each token, more room upwards | equal for each token |
# | `gspo` | as `grpo` | ratio of the whole episode | equal for each episode |
# | `rloo` | reward − mean of the *others* | nothing | equal for each token |
# | `reinforce_pp` | reward, normalised over the whole update | ratio of each token | equal for each token |

# %% [markdown]
# ## From rewards to advantages
#
# Four episodes of one task: one is right, one is half right, two are wrong.

# %%
rewards = np.array([1.0, 0.5, 0.0, 0.0])
for advantages in ("group_advantages", "mean_difference", "leave_one_out", "plain_rewards"):
    print(f"{advantages:18}", np.round(getattr(al.algorithms, advantages)(rewards), 2))

# %% [markdown]
# Positive means: make these tokens likelier. `leave_one_out` has the largest numbers, because an episode is not part
# of its own mean. And where all rewards are equal there is nothing to learn, exactly:

# %%
print(al.algorithms.group_advantages(np.full(8, 0.9)))

# %% [markdown]
# ## One task for all
#
# A tiny random model, about 100,000 parameters, one token per character. It shall write vowels. The reward is the
# share of vowels in what it writes; it may write eight characters.

# %%
task = al.Task("vowels", "Write vowels.")
roles = {"agent_class": al.ModelAgent, "env_class": al.TaskEnvironment}
roles |= {"env_kwargs": {"reward_fn": lambda task, answer: sum(c in "aeiou" for c in answer) / max(8, len(answer))}}
options = {"group_size": 8, "groups_per_step": 2, "max_concurrency": 16, "max_tokens": 8, "tokens_per_slot": 64}
options |= {"lora_rank": 0, "learning_rate": 3e-3, "row_tokens": 128, "micro_batch_tokens": 256}

# %%
names = ["grpo", "dr_grpo", "rloo", "reinforce_pp"]
names += [] if FAST else ["dapo", "gspo"]
seeds, steps = range(3), 40

# %% [markdown]
# ## Train with each
#
# One run after the other: there is one live run per kernel.

# %%
runs = {name: [] for name in names}
for name, seed in itertools.product(names, seeds):
    config = al.GRPOConfig(algorithm=getattr(al.algorithms, name), seed=seed, **options)
    learner = al.GRPOLearner(model=al.tiny_model(), config=config, **roles)
    run = learner.train(itertools.repeat(task), steps=steps, name=f"{name}, seed {seed}")
    runs[name].append(run.wait())
    print(run)

# %% [markdown]
# ## Compare

# %%
viz.compare({name: found[0] for name, found in runs.items()});

# %% [markdown]
# *One line per algorithm, of the first seed: the reward rises with each of them.*
#
# One seed says little. The mean over all updates tells how early a reward rises; its range over the seeds tells how much
# of that is chance:

# %%
means = {name: [np.mean([row["reward_mean"] for row in run.metrics]) for run in found] for name, found in runs.items()}
for name, values in means.items():
    print(f"{name:13} mean {np.mean(values):.2f}, from {min(values):.2f} to {max(values):.2f} over {len(values)} seeds")

# %% [markdown]
# Where the ranges overlap, this experiment does not tell two algorithms apart. A range above all others is more than
# chance *on this task and with this learning rate*; on another it may be otherwise.

# %% [markdown]
# ## Change one part
#
# Everything else stays as it is. The name stands in charts and checkpoints.

# %%
mine = replace(al.algorithms.grpo, name="grpo, plain difference", advantages=al.algorithms.mean_difference)
learner = al.GRPOLearner(model=al.tiny_model(), config=al.GRPOConfig(algorithm=mine, **options), **roles)
changed = learner.train(itertools.repeat(task), steps=steps, name=mine.name).wait()
viz.compare({"grpo": runs["grpo"][0], mine.name: changed});

# %% [markdown]
# *The same seed with and without division by the deviation: the plain difference gives smaller advantages while the
# rewards of a group lie close together, but AdamW scales steps by itself, so the lines stay near each other.*

# %% [markdown]
# ## Exercises
#
# 1. What changes with `group_size=2`?
#
# <details><summary>Answer</summary>
#
# The mean of a group is then the mean of two episodes, and says little: advantages are noisy. With
# `al.algorithms.group_advantages` they are only ever +1 and −1, or 0. Rewards rise more slowly for the same number of
# episodes.
#
# </details>
#
# 2. Make an algorithm that prefers short answers.
#
# <details><summary>Answer</summary>
#
# `replace(al.algorithms.dapo, shaping=al.algorithms.OverlongPenalty(max_tokens, buffer_tokens))` takes something off the
# reward of answers that come near `max_tokens`.
#
# </details>
#
# 3. Which option leaves out groups that teach nothing, and starts others in their place?
#
# <details><summary>Answer</summary>
#
# `filter_equal_rewards=True` of `al.GRPOConfig`, the dynamic sampling of DAPO.
#
# </details>
#
# 4. The reward divides by the length of the answer. What goes wrong if it divides by 8 alone?
#
# <details><summary>Answer</summary>
#
# With seed 0 the model then learns to write the special token `<|im_start|>`, which has two vowels: eight of them earn
# 2, more than eight vowels do. A reward is taken at its word, so look at episodes, not only at curves:
# `viz.show_trajectory(run.trajectories[-1], learner.model.tokenizer)`.
#
# </details>
#
# **Next:** [07_bring_your_own_environment](07_bring_your_own_environment.ipynb)
