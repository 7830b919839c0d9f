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
# # Tools: a model learns to use two of them
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - what a tool is, and how a model calls one;
# - how to show a model what a call looks like (learning by example), so that there is something to build on;
# - how reinforcement learning makes of a model that sometimes gets it right one that nearly always does.
#
# **Time:** about 2 minutes on two CPU cores with any preset, for the model is tiny; on a TPU it has not been measured yet.

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

# %% [markdown]
# ## What a tool is
#
# A tool is a Python object that can be called. A name, a docstring and annotations are all that it needs: the model is
# told of it in these words. A plain function works, too.

# %%
tools = {"p": al.tools.Lookup(), "c": al.tools.Calculator()}
for spec in al.tools.specs_of(tools):
    print(spec.name, "-", spec.description, dict(spec.parameters["properties"]))

# %% [markdown]
# *`p` looks a price up, `c` calculates. The names are short because the model of this notebook reads and writes
# letter by letter: each letter is one token.*
#
# A call is text that the model writes, such as `c(3*42)`. The agent finds it, the environment runs it, and the model
# reads the result. What cannot be run is answered with a reason, so that the model can try again.

# %%
task = al.Task("1", "3 fox", {"answer": "126", "table": {"fox": 42, "hen": 17}})
environment = al.ToolEnvironment(task, tool_map=tools, reward_fn=al.rewards.same_number)
agent = al.ToolAgent(tool_map=tools, tool_parser_name="short")
environment.reset()
for said in ("p(fox)", "p(fix)", "c(3*)", "c(3*42)"):
    (result,) = environment.step(agent.update_from_model(said)).observation
    print(f"{said:8} -> {result.text}")

# %% [markdown]
# ## The tasks
#
# "3 fox" asks: what do three foxes cost? Each task has a price list of its own, drawn anew, so no price can be learned
# by heart. Two calls are needed: look up, then multiply. `held_out` asks only what training never asks.

# %%
animals = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
ask = {"items": animals, "table_size": 4, "max_quantity": 9, "prompt": "{quantity} {item}"}
train_tasks = al.tasks.prices(seed=SEED, **ask)
held_out = al.tasks.prices(seed=SEED, split="eval", count=128, **ask)
next(iter(held_out))

# %% [markdown]
# ## The model
#
# A model of 0.2 million parameters, random at first, made on the spot: nothing is downloaded. Its chat template marks
# each speaker by one letter, which keeps episodes short.

# %%
model = al.tiny_model(SEED, hidden_size=64, intermediate_size=192, num_layers=3, max_position=256)
model.tokenizer.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
model

# %% [markdown]
# ## Learning by example
#
# Reinforcement learning needs some success to begin with: what never happens cannot be rewarded. So the model first
# reads conversations. Two of five are right; the others look the price up, forget to multiply, and are wrong.

# %%
said_by = ("user", "assistant", "tool", "assistant", "tool", "assistant")
examples = []
for number, task in enumerate(al.tasks.prices(seed=SEED + 1000, count=4000, **ask)):
    quantity, item = task.data["quantity"], task.data["item"]
    price = task.data["table"][item]
    said = [task.prompt, f"p({item})", f"{price}", f"{price}"]
    if number % 5 < 2:
        said[3:] = [f"c({quantity}*{price})", f"{quantity * price}", f"{quantity * price}"]
    examples.append([{"role": role, "content": text} for role, text in zip(said_by, said, strict=False)])
examples[0]

# %%
every_weight = {"lora_rank": 0, "seed": SEED}
trainer = al.SFTTrainer(
    model=model,
    config=al.SFTConfig(learning_rate=3e-3, conversations_per_step=32, warmup_steps=20, **every_weight),
)
imitation = trainer.train(examples, steps=160)
imitation

# %% [markdown]
# *Every token that the assistant says becomes likelier. There is no reward yet: the curve is the loss.
# `lora_rank=0` means that all weights are trained.*
#
# The *loss* says how much the examples still surprise the model: 0 would be not at all.

# %%
imitation.wait()
print(f"loss {imitation.metrics[0]['loss']:.2f} -> {imitation.metrics[-1]['loss']:.2f}")

# %% [markdown]
# ## Reinforcement learning
#
# Now the model plays: eight episodes of each task are compared with each other. What an episode did that earned more
# than the others becomes likelier. Each call takes 0.1 s more than it needs, as a remote service would.

# %%
slow_tools = {name: al.tools.Slow(tool, 0.1) for name, tool in tools.items()}
learner = al.GRPOLearner(
    model=trainer.trained_model,
    agent_class=al.ToolAgent,
    agent_kwargs={"tool_map": slow_tools, "tool_parser_name": "short", "describe_tools": False},
    env_class=al.ToolEnvironment,
    env_kwargs={"tool_map": slow_tools, "reward_fn": al.rewards.same_number, "max_turns": 4},
    config=al.GRPOConfig(
        group_size=8, groups_per_step=8, max_concurrency=128, num_slots=32, max_tokens=10, tokens_per_slot=96,
        learning_rate=1e-3, **every_weight,
    ),
)  # fmt: skip

# %%
before = learner.evaluate(held_out)
print(before)

# %% [markdown]
# *It has seen right conversations and wrong ones, so it is right now and then.*

# %%
run = learner.train(train_tasks, steps=20)
run

# %% [markdown]
# *On the left what is busy, on the right the mean reward of each update. The notebook stays free meanwhile.*

# %%
run.wait();

# %%
after = learner.evaluate(held_out)
print(after)

# %% [markdown]
# Did the reward really rise? Then the 95 % intervals before and after do not overlap.

# %%
assert after.low > before.high

# %%
viz.curves(run);

# %% [markdown]
# *Each point is one update: the mean reward of its 64 episodes.*
#
# ## What it learned

# %%
best = [trajectory for trajectory in run.trajectories if trajectory.reward == 1.0]
viz.show_trajectory(best[-1], model.tokenizer)

# %% [markdown]
# *The model looks the price up, multiplies, and reports. What it wrote is coloured, the rest was given.*

# %%
turns = [len(trajectory.turns) for trajectory in after.trajectories]
print(f"{sum(count == 3 for count in turns) / len(turns):.0%} of the held-out episodes call both tools")

# %% [markdown]
# ## Exercises
#
# 1. Train without the examples: give `learner` the random model. What happens to the reward?
#
# <details><summary>Answer</summary>
#
# It stays at 0: a random model never writes a call, all eight episodes of a task earn the same, and equal rewards
# teach nothing.
#
# </details>
#
# 2. Give half a point for a look-up alone. Does it learn faster?
#
# <details><summary>Answer</summary>
#
# A reward function is any function of task and answer, but it does not see the calls: write an environment that derives
# from `al.ToolEnvironment` and adds to the reward in `_step_impl`. Faster at first, perhaps; but a model that is paid
# for looking up may look up for ever.
#
# </details>
#
# 3. Write a tool of your own.
#
# <details><summary>Answer</summary>
#
# ```python
# def weekday(date: str) -> str:
#     """The day of the week of a date such as 2026-11-29."""
#     return datetime.date.fromisoformat(date).strftime("%A")
#
# tools = {"weekday": weekday}
# ```
#
# The docstring is the description that the model reads, and the annotations say what it may pass.
#
# </details>
#
# **Next:** [04_why_async](04_why_async.ipynb) runs the same training with and without waiting.
