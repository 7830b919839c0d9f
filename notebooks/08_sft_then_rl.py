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
# # First by example, then by reward
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - why reinforcement learning alone gets nowhere where a model never earns anything;
# - how to teach the *form* of an answer by example, with `al.SFTTrainer`;
# - how to teach what is *right* by reward, going on from there.
#
# **Time:** about 1 minute on two CPU cores, no accelerator needed. On a TPU it has not been measured.

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
import random
import tempfile

from agentlab import viz

rng = random.Random(0)

# %% [markdown]
# ## Task and model
#
# Which sound does an animal make? The model is tiny and random: it knows no words and no animals. There are only four
# questions; whether a model generalises is not the matter here.

# %%
sounds = {"cat": "meow", "dog": "woof", "cow": "moo", "owl": "hoot"}
tasks = [al.Task(animal, animal, {"answer": sound}) for animal, sound in sounds.items()]
model = al.tiny_model()
roles = {"agent_class": al.ModelAgent, "env_class": al.TaskEnvironment, "env_kwargs": {"reward_fn": al.rewards.exact}}

# %%
options = {"group_size": 8, "groups_per_step": 4, "max_concurrency": 16, "max_tokens": 8, "tokens_per_slot": 64}
options |= {"lora_rank": 0, "learning_rate": 5e-4, "row_tokens": 128, "micro_batch_tokens": 512}
config = al.GRPOConfig(**options)

# %% [markdown]
# ## Reward alone
#
# A random model would have to hit on the letters of a word by chance.

# %%
alone = al.GRPOLearner(model=model, config=config, **roles)
run = alone.train(itertools.cycle(tasks), steps=2, name="reward alone").wait()
print([row["reward_mean"] for row in run.metrics])
print(run.snapshot().notes[-1])

# %% [markdown]
# Every reward is 0, so all advantages are 0: there is nothing to learn from.

# %% [markdown]
# ## By example
#
# These demonstrations are bad: about half of them are right, the others give any of the four sounds.

# %%
others = sounds.values()
conversations = [
    [{"role": "user", "content": animal}, {"role": "assistant", "content": rng.choice([sound] * 3 + [*others])}]
    for animal, sound in sounds.items()
    for _ in range(64)
]
conversations[0]

# %%
teach = al.SFTConfig(lora_rank=0, learning_rate=3e-3, conversations_per_step=32)
teacher = al.SFTTrainer(model=model, config=teach)
run = teacher.train(conversations, steps=100)
run

# %% [markdown]
# *Supervised training is a run like any other: here nothing is sampled, so only the learner is busy.*

# %%
run.wait()
[round(row["loss"], 2) for row in run.metrics[::10]]

# %% [markdown]
# The loss falls, but not to 0: which sound comes is chance in part. The model has learned the form of an answer, and
# the mistakes of its examples:

# %%
learner = al.GRPOLearner(model=teacher.trained_model, config=config, **roles)
before = learner.evaluate(tasks, k=32)
print(before)

# %% [markdown]
# ## Then by reward
#
# The same settings as at the beginning, but now many answers earn something. What earns more becomes likelier.

# %%
run = learner.train(itertools.cycle(tasks), steps=80, name="example, then reward")
run

# %% [markdown]
# *Now the model plays: its answers, their rewards and the updates go on side by side.*

# %%
run.wait()
viz.curves(run.metrics);

# %% [markdown]
# *The mean reward of each update: the mistakes of the examples go away.*

# %%
after = learner.evaluate(tasks, k=32)
print(f"{before.success:.0%} right before, {after.success:.0%} after")
assert after.success > before.success + 0.2

# %%
viz.show_trajectory(run.trajectories[-1], model.tokenizer)

# %% [markdown]
# *One of the last episodes: the word is the model's, and only its tokens are trained.*

# %% [markdown]
# ## Keep it
#
# The folder is in Hugging Face's layout; `al.load_model` reads it again.

# %%
folder = tempfile.mkdtemp()
al.save_model(learner.trained_model, folder)
al.load_model(folder, progress=False).config.num_layers

# %% [markdown]
# ## Exercises
#
# 1. Let all demonstrations be right. What is left for the reward to teach?
#
# <details><summary>Answer</summary>
#
# Nearly nothing: `sound` in place of `rng.choice(...)` teaches form and content at once. Reward is for what can be
# judged but not shown well.
#
# </details>
#
# 2. Give adapters instead of all weights.
#
# <details><summary>Answer</summary>
#
# `lora_rank=16` in both configurations, and a larger `learning_rate` for it. For a model of a billion parameters that is
# the way; a tiny one has room for all.
#
# </details>
#
# 3. What does a learning rate of 3e-3 do in the second stage?
#
# <details><summary>Answer</summary>
#
# It stayed at 50 % when this was tried: the first large steps make some wrong answers certain, and then all rewards of a
# group are equal and teach nothing. Reinforcement takes smaller steps than imitation.
#
# </details>
#
# **Next:** [09_colab_tpu](09_colab_tpu.ipynb)
