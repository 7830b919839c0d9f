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
# # A model of a billion parameters on one Colab TPU
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - how to see what a machine has, and whether a run fits before anything is allocated;
# - how to train Qwen 2.5 with adapters while engine and trainer share one chip;
# - how to keep a Colab session alive and lose nothing when it ends.
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
from pathlib import Path

from agentlab.platform import detect

FAST, TPU = preset == "fast", preset == "tpu"

# %% [markdown]
# In Colab: *Runtime → Change runtime type → v5e-1 TPU* (one chip, 16 GiB) or *v6e-1 TPU* (one chip, 32 GiB).
#
# ## What is here

# %%
machine = detect()
print(machine.system, machine.cores, "cores", [device.kind for device in machine.devices])

# %% [markdown]
# ## The model
#
# | preset | model | download |
# | --- | --- | --- |
# | fast | a tiny random one | none |
# | cpu | SmolLM2, 135 million parameters | 0.1 GB |
# | tpu | Qwen 2.5, 1.5 billion parameters, in bfloat16 | 3 GB |
#
# `"google/gemma-3-1b-it"` works as well. Gemma asks for permission: accept its terms on its page on the Hugging Face hub,
# and log in there first.

# %%
name = "Qwen/Qwen2.5-1.5B-Instruct" if TPU else "HuggingFaceTB/SmolLM2-135M-Instruct"
model = al.tiny_model(model_type="qwen2") if FAST else al.load_model(name, dtype="bfloat16" if TPU else "float32")
model

# %% [markdown]
# ## The task
#
# Products of two numbers, with a calculator. The call takes 0.2 s more than it needs, as a remote service would. The
# syntax of a call is the one that the model was taught.

# %%
tools = {"calculator": al.tools.Slow(al.tools.Calculator, 0.2)}
train_tasks = al.tasks.arithmetic(seed=0, operators="*")
held_out = al.tasks.arithmetic(seed=0, operators="*", split="eval", count=4 if FAST else 64)
agent = {"system_prompt": "Use the calculator, then give the number.", "tool_map": tools}
agent["describe_tools"] = not FAST  # the tiny model reads single characters: a long prompt costs it much

# %%
size = {"group_size": 8, "groups_per_step": 8, "max_concurrency": 64, "max_tokens": 128, "tokens_per_slot": 1024}
if FAST:
    size = {"group_size": 4, "groups_per_step": 1, "max_concurrency": 8, "max_tokens": 8, "tokens_per_slot": 256}
config = al.GRPOConfig(**size, max_turns=3, max_off_policy_steps=1, lora_rank=16, learning_rate=1e-4)

# %%
learner = al.GRPOLearner(
    model=model,
    agent_class=al.ToolAgent,
    agent_kwargs=agent,
    env_class=al.ToolEnvironment,
    env_kwargs={"tool_map": tools, "reward_fn": al.rewards.same_number, "max_turns": 3},
    config=config,
)

# %% [markdown]
# ## Does it fit?
#
# On one chip engine and trainer share the device. The plan says what each takes, before anything is allocated; `train`
# refuses to start where it does not fit, and says what to lower.

# %%
print(learner.plan)

# %% [markdown]
# Adapters (`lora_rank=16`) keep the optimizer small. A micro-batch holds up decoding while it computes: where the plan
# says that this takes long, lower `micro_batch_tokens`.

# %% [markdown]
# ## Before training

# %%
before = learner.evaluate(held_out)
print(before)

# %% [markdown]
# ## Train
#
# Colab counts a kernel without an executing cell as idle, so on Colab stay in a cell: `run.watch()` shows the run until it
# ends. Interrupting the cell ends the watching, not the run. On disconnect everything on the machine is lost, so put
# checkpoints on a mounted drive, and run the same cells again to go on: `resume=True` begins where there is nothing yet.

# %%
# On Colab: from google.colab import drive; drive.mount("/content/drive")
drive = Path("/content/drive/MyDrive")
folder = drive / "agentlab" / "products" if drive.is_dir() else None
steps = 30 if FAST else 60
run = learner.train(train_tasks, steps=steps, checkpoint_dir=folder, checkpoint_every_s=300, resume=folder is not None)
run.watch()

# %% [markdown]
# *Reward, what each thread did in the last minute, and what the device waited for. In this stored copy the model is tiny
# and random: it never calls the tool, earns nothing and learns nothing.*

# %% [markdown]
# ## After training

# %%
run.wait()
after = learner.evaluate(held_out)
print(f"{before.success:.0%} before, {after.success:.0%} after")

# %%
run.timeline();

# %% [markdown]
# *Each row is a part of the run, over time; black is compilation, which takes most of so short a run. With a model that
# calls the tool, there is a row for it: while some episodes wait, the engine decodes others and the learner updates the weights; on one chip the two take turns.*

# %%
print(run.diagnose())

# %% [markdown]
# ## What has been tried
#
# - The cells of this notebook: on a CPU, with the fast preset, by the tests.
# - Package versions of Colab's TPU image (Python 3.13, jax 0.7.2): the tests, on a CPU.
# - A TPU, Colab itself, and Qwen or Gemma at this size: **not yet**. The numbers of the plan are estimates.
#
# ## Exercises
#
# 1. The plan says that it does not fit. What is lowered first?
#
# <details><summary>Answer</summary>
#
# What the last lines of the plan name: usually `num_slots` or `tokens_per_slot`, since keys and values of all episodes
# are the largest part after the weights.
#
# </details>
#
# 2. What does `max_off_policy_steps=0` do on one chip?
#
# <details><summary>Answer</summary>
#
# Episodes are played with the newest weights only, so the device idles while the slowest episodes of an update wait for
# their tools. With 1 the next update's episodes play meanwhile.
#
# </details>
#
# **Next:** [10_kaggle_tpu](10_kaggle_tpu.ipynb)
