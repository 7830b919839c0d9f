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
# # Why asynchronous: the same run with and without waiting
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - why training agents leaves a device idle when everybody waits for everybody;
# - what changes when episodes may run one update ahead of the weights they train (*asynchronous*);
# - how to read two timelines side by side, and what running ahead costs.
#
# **Time:** about a minute and a half on two CPU cores, one with `PRESET = "fast"`; on a TPU it has not been measured yet.

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
from agentlab import viz

SEED = 0
FAST = preset == "fast"

# %% [markdown]
# ## A slow world
#
# Agents wait: for a web page, a compiler, a database. Here each step of the environment takes 1 s on average, from 0.4 s
# to 1.6 s. The model is tiny and random, and made on the spot. What it learns is easy: to say something with a digit
# in it.

# %%
model = al.tiny_model(SEED)
tasks = [al.Task(f"{number}", "Say a number.") for number in range(1000)]
slow_world = al.environments.Latency(al.TaskEnvironment, 1.0, jitter=0.6)
roles = {"agent_class": al.ModelAgent, "env_class": slow_world}
roles["env_kwargs"] = {"reward_fn": al.rewards.regex(r"\d")}

# %% [markdown]
# Four episodes of each of four tasks make an update: 16 episodes. 32 may be in flight at once.

# %%
options = {"group_size": 4, "groups_per_step": 4, "max_concurrency": 32, "max_tokens": 8}
options |= {"tokens_per_slot": 64, "row_tokens": 64, "micro_batch_tokens": 64}
options |= {"learning_rate": 1e-3, "lora_rank": 0, "seed": SEED}
steps = 8 if FAST else 20

# %% [markdown]
# `row_tokens` and `micro_batch_tokens` say in which pieces the learner computes: pieces of one size need one program.
# Programs are compiled when they are first used; a short run first keeps that out of the comparison.

# %%
config = al.GRPOConfig(**options)
al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=3, name="warm-up").wait();

# %% [markdown]
# ## First with waiting
#
# `max_off_policy_steps=0`: every episode is played with the newest weights. So no episode may begin before the update
# has ended, and no update before the slowest episode has ended. Everybody waits for everybody.

# %%
config = al.GRPOConfig(max_off_policy_steps=0, **options)
synchronous = al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=steps, name="synchronous")
synchronous

# %% [markdown]
# *The gaps in the picture on the left: nothing is computed, all episodes stand in the slow world.*

# %%
synchronous.wait();

# %% [markdown]
# ## Then one update ahead
#
# `max_off_policy_steps=1`: an episode may be played with weights that are one update old. While the learner trains on
# one batch, the next one is being played already. Nothing else changes.

# %%
config = al.GRPOConfig(max_off_policy_steps=1, **options)
ahead = al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=steps, name="one update ahead")
ahead

# %% [markdown]
# *The same amount of work with fewer and shorter gaps: some episodes wait while others are sampled or trained on.*

# %%
ahead.wait();

# %% [markdown]
# ## Side by side
#
# The same scale for both: a second is as wide above as below.

# %%
runs = {"synchronous": synchronous, "one update ahead": ahead}
viz.timelines(runs);

# %% [markdown]
# *Read it lane by lane: a coloured stretch is work, light grey is waiting. Above, work comes in bursts, one per update. Below,
# the environments are busy all the time, and the device gets something to do sooner.*

# %%
seconds = {}
for name, run in runs.items():
    first, last = run.metrics[0], run.metrics[-1]
    seconds[name] = (last["time_s"] - first["time_s"]) / (steps - 1)
    waited = sum(row["wait_batch_s"] for row in run.metrics[1:]) / (steps - 1)
    print(f"{name}: {seconds[name]:.2f} s per update, of which the learner waits {waited:.2f} s for episodes")
print(f"{seconds['synchronous'] / seconds['one update ahead']:.1f} times as fast")

# %%
assert seconds["one update ahead"] < seconds["synchronous"]

# %% [markdown]
# ## What it costs
#
# *Staleness* is the age of what is trained on, in updates. It is bounded: what is older than
# `max_off_policy_steps` when its turn comes is dropped, and counted. (Dropped are groups, of four episodes each.)

# %%
for name, run in runs.items():
    oldest = max(row["staleness_max"] for row in run.metrics)
    print(f"{name}: at most {oldest:.0f} updates old, {run.snapshot().counts.stale} groups dropped")
    assert oldest <= (name == "one update ahead")

# %%
viz.compare(runs);

# %% [markdown]
# *The mean reward by update. Data that is one update old may teach a little less per update; but updates come faster.*
#
# ## Exercises
#
# 1. Let episodes run three updates ahead. Is it faster again?
#
# <details><summary>Answer</summary>
#
# Hardly, unless `max_concurrency` is raised, too: with 32 episodes in flight and 16 per update no more than two batches
# are under way. And the older the data, the less it says about the weights of now.
#
# </details>
#
# 2. Make the slow world even: `jitter=0.0`. Which of the two runs gains more?
#
# <details><summary>Answer</summary>
#
# The synchronous one: it waits for the slowest episode of each update, which is now as quick as the others. The other
# one hardly waits for the slowest anyway.
#
# </details>
#
# **Next:** [05_watch_and_diagnose](05_watch_and_diagnose.ipynb) finds out what a run waits for, and mends it.
