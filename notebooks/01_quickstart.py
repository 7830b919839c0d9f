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
# # Quickstart: a small model learns to use a tool
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - what an *episode* is: a language model calls a calculator and answers;
# - how to train the model in the background, with the dashboard live, while the notebook stays free;
# - how to see what waited for what, and how much better the model got.
#
# **Time:** about 5 minutes on two CPU cores, no accelerator needed; on a TPU it has not been measured yet.

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
# ## Model and tasks
#
# SmolLM2 has 135 million parameters. It is bad at multiplying in its head, and a calculator is at hand.

# %%
model = al.tiny_model() if FAST else al.load_model("HuggingFaceTB/SmolLM2-135M-Instruct")
model

# %%
ask = {"operators": "*", "prompt": "Use the calculator: {expression}"}
train_tasks = al.tasks.arithmetic(seed=SEED, **ask)
held_out = al.tasks.arithmetic(seed=SEED, split="eval", count=8 if FAST else 128, **ask)
next(iter(held_out))

# %% [markdown]
# *`held_out` asks only products that training never asks.*
#
# ## Agent and environment
#
# The agent turns text into tool calls. The environment runs the tool and scores the answer. Neither knows how the
# model is trained. Each call takes 0.2 s more than a calculator needs, as a remote service would.

# %%
calculator = {"calculator": al.tools.Slow(al.tools.Calculator, 0.2)}
example = [
    {"role": "user", "content": "Use the calculator: 57 * 83"},
    {"role": "assistant", "content": "calculator(57 * 83)"},
    {"role": "tool", "content": "4731"},
    {"role": "assistant", "content": "4731"},
]

# %%
agent = {"system_prompt": "Use the calculator.", "tool_map": calculator, "tool_parser_name": "short"}
agent |= {"examples": example, "describe_tools": False}
environment = {"tool_map": calculator, "reward_fn": al.rewards.same_number, "max_turns": 3}

# %% [markdown]
# Eight episodes of each task are compared with each other, four tasks make an update, and up to 32 episodes are in
# flight. Episodes may begin one update before the weights they will train.

# %%
config = al.GRPOConfig(
    group_size=8,
    groups_per_step=4,
    max_concurrency=32,
    max_off_policy_steps=1,
    max_tokens=16,
    tokens_per_slot=256,
    learning_rate=1e-4,
    seed=SEED,
)

# %%
learner = al.GRPOLearner(
    model=model,
    agent_class=al.ToolAgent,
    agent_kwargs=agent,
    env_class=al.ToolEnvironment,
    env_kwargs=environment,
    config=config,
)

# %% [markdown]
# ## One episode

# %%
viz.show_trajectory(learner.run_episode(next(iter(train_tasks))), model.tokenizer)

# %% [markdown]
# *What the model sampled is coloured: only these tokens are trained. The rest is the prompt, the template and the
# tool's answer.*
#
# ## Before training

# %%
before = learner.evaluate(held_out)
print(before)

# %% [markdown]
# ## Train
#
# `train` returns at once. Displaying the run shows it live; the next cells run while it trains. (On Colab
# the cell itself refreshes the display until the run ends; interrupt it to go on: that ends only the watching.)

# %%
run = learner.train(train_tasks, steps=2 if FAST else 12)
run

# %% [markdown]
# *While episodes wait for the calculator the engine decodes others, and the learner updates the weights; nobody waits
# for a whole batch to finish. When the run ends the dashboard becomes a picture.*

# %%
run.snapshot().counts

# %%
run.wait();

# %% [markdown]
# ## After training

# %%
after = learner.evaluate(held_out)
print(after)

# %%
viz.show_trajectory(run.trajectories[-1], model.tokenizer)

# %% [markdown]
# *One of the last episodes of training: the call is the model's, the result is the tool's.*
#
# Did it really get better? Then the two 95 % intervals do not overlap. (With `PRESET = "fast"` a random model plays two
# updates, too few to learn anything; then only the end of the run is checked.)

# %%
assert run.status == "finished"
assert FAST or after.low > before.high

# %%
viz.curves(run.metrics);

# %% [markdown]
# *Each point is one update: the mean reward of its 32 episodes.*
#
# ## Where the time went

# %%
run.timeline();

# %% [markdown]
# *Gaps in the device's lane are time in which nothing was computed.*

# %%
print(run.diagnose())

# %% [markdown]
# ## Keep it
#
# The trace opens in [ui.perfetto.dev](https://ui.perfetto.dev).

# %%
run.save_metrics("metrics.jsonl")
run.save_trace("run.pftrace")
before.save("before.json")
after.save("after.json")
print(f"{before.success:.0%} before, {after.success:.0%} after")

# %% [markdown]
# ## Exercises
#
# 1. Which share of the time did the device wait for the calculator? What would you expect with `Slow(..., 2.0)`?
#
# <details><summary>Answer</summary>
#
# `run.diagnose().causes` has the shares by what was waited for. With 2 s per call and 32 episodes in flight more of the
# time goes to waiting for tools; raising `max_concurrency` brings it down again.
#
# </details>
#
# 2. Make every episode train the newest weights only: change one option of the configuration. What does it cost?
#
# <details><summary>Answer</summary>
#
# `max_off_policy_steps=0`. Then episodes and updates take turns, and each update waits for its slowest episode.
# Notebook 04 shows both timelines.
#
# </details>
#
# **Next:** [02_agents_and_environments](02_agents_and_environments.ipynb) steps through one episode by hand.
