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
# # Eight chips on Kaggle, and a run that outlives its session
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - how eight chips are split between sampling and training, and what each must hold;
# - how a run writes checkpoints by the clock;
# - how the same cell goes on in the next session: no task repeated, none skipped.
#
# **Time:** about 1 minute on two CPU cores with the fast preset. On a TPU it has not been measured: *this notebook has
# never been run on a TPU.* The outputs below are those of the fast preset: the same cells, a tiny random model, a CPU.

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
import tempfile
from dataclasses import replace
from pathlib import Path

from agentlab import viz
from agentlab.platform import Device, Platform, detect, plan

FAST, TPU = preset == "fast", preset == "tpu"

# %% [markdown]
# In Kaggle: *Settings → Accelerator → TPU v5e-8* (eight chips of 16 GiB) and *Internet on*. A session ends after 9 hours;
# only what lies in `/kaggle/working` is kept, up to 20 GB.
#
# ## Eight chips
#
# `plan` says where to sample and where to train, and what that takes. It allocates nothing, so it answers for a machine
# that is not here, too:

# %%
chips = tuple(Device("tpu", "TPU v5 lite", 16 * 2**30) for _ in range(8))
kaggle = Platform("kaggle", "3.12", "linux x86_64", 96, 400 * 2**30, chips)
machine = detect() if TPU else kaggle

# %%
name = "Qwen/Qwen2.5-1.5B-Instruct" if TPU else "HuggingFaceTB/SmolLM2-135M-Instruct"
model = al.tiny_model(model_type="qwen2") if FAST else al.load_model(name, dtype="bfloat16" if TPU else "float32")
size = {"group_size": 8, "groups_per_step": 16, "max_concurrency": 128, "max_tokens": 128, "tokens_per_slot": 1024}
large = al.GRPOConfig(**size, lora_rank=16)
print(plan(model.config, large, machine=machine))

# %% [markdown]
# Half of the chips sample, the other half trains; a new policy travels from the one to the other after each update. The
# same for a decoder of the size of Qwen 2.5 with 1.5 billion parameters, in bfloat16 (2 bytes per weight):

# %%
sizes = {"vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_layers": 28, "num_heads": 12}
sizes |= {"num_kv_heads": 2, "head_dim": 128, "max_position": 32_768, "tied_embeddings": True}
qwen = replace(model.config, **sizes)
print(plan(qwen, large, machine=kaggle, item_bytes=2))

# %% [markdown]
# A learner does so by itself: `placement="auto"`, the default, splits the chips as the plan says, `engine_devices=2`
# chooses how many of them sample, and `placement="colocated"` lets all of them do both in turns. `print(learner.plan)`
# shows what a learner will do. The tests do it on eight simulated devices.

# %% [markdown]
# ## A run with checkpoints
#
# A checkpoint is written every 10 updates, and at the latest every 5 minutes: weights, optimizer, and the account of
# which tasks are done. Three are kept. Here the task is small, so that the run is short: write vowels.

# %%
task = al.Task("vowels", "Write vowels.")
options = {"group_size": 8, "groups_per_step": 2, "max_concurrency": 16, "max_tokens": 8, "tokens_per_slot": 64}
options |= {"lora_rank": 0, "learning_rate": 3e-3 if FAST else 1e-5, "row_tokens": 128, "micro_batch_tokens": 256}
roles = {"agent_class": al.ModelAgent, "env_class": al.TaskEnvironment}
roles |= {"env_kwargs": {"reward_fn": lambda task, answer: sum(c in "aeiou" for c in answer) / max(8, len(answer))}}

# %%
working = Path("/kaggle/working")
folder = (working if working.is_dir() else Path(tempfile.mkdtemp())) / "vowels"
often = {"checkpoint_dir": folder, "checkpoint_every": 10, "checkpoint_every_s": 300}

# %%
learner = al.GRPOLearner(model=model, config=al.GRPOConfig(**options), **roles)
run = learner.train(itertools.repeat(task), steps=20, resume=True, **often).wait()
print(run, sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# That was the first session. Now it ends: the learner is forgotten, as it is when the kernel dies.
#
# ## The next session
#
# After a session that was saved (*Save Version*), add its output as an input of the notebook and copy the folder to
# `/kaggle/working`. Then the *same cell* goes on; only `steps` is larger, since it counts those of before.

# %%
del learner
learner = al.GRPOLearner(model=model, config=al.GRPOConfig(**options), **roles)
run = learner.train(itertools.repeat(task), steps=40, resume=True, **often).wait()
print(run)

# %%
viz.curves(run.metrics);

# %% [markdown]
# *One curve over both sessions: the metrics of the first are in the checkpoint.*

# %%
print(*(int(row["step"]) for row in run.metrics))

# %% [markdown]
# Every update once, in order. A checkpoint of another model or configuration is refused, with the differences:

# %%
try:
    other = al.GRPOLearner(model=model, config=al.GRPOConfig(**options | {"max_tokens": 4}), **roles)
    other.train(itertools.repeat(task), steps=60, resume=True, **often)
except al.errors.ConfigError as error:
    print(str(error).replace(str(folder), "vowels"))

# %% [markdown]
# ## What has been tried
#
# - The cells of this notebook: on a CPU, with the fast preset, by the tests.
# - Stopping a run at any moment and going on: by the tests, also with a process that is killed.
# - Kaggle itself, and eight chips: **not yet**. The numbers of the plan are estimates.
#
# ## Exercises
#
# 1. The session ends in 5 minutes and an update takes 2. What is lost at most?
#
# <details><summary>Answer</summary>
#
# What was done since the last checkpoint: with `checkpoint_every_s=300` about five minutes. With `checkpoint_every=1` one
# update, and some time for writing, which happens in the background.
#
# </details>
#
# 2. How would you keep checkpoints in a bucket?
#
# <details><summary>Answer</summary>
#
# `checkpoint_dir="gs://bucket/run"`.
#
# </details>
#
# **Next:** your own agents. The names you need are in [the reference](../agentlab/docs/reference.md), and what to do about
# errors in [troubleshooting](../agentlab/docs/troubleshooting.md).
