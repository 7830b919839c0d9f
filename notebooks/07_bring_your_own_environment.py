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
# # Bring your own environment
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - how to train in any Gymnasium environment;
# - how to write an environment of your own, and how to check it;
# - how tasks in a bash terminal are played and judged.
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
# Gymnasium is not part of Colab's image. This adds it where it is missing.
if not __import__("importlib.util").util.find_spec("gymnasium"):
    # %pip install -q "gymnasium[toy-text]"

# %%
import itertools

from agentlab import viz
from agentlab.environments import GymEnvironment, Terminal, check_environment
from agentlab.types import ToolCall

# %% [markdown]
# ## Gymnasium, by hand
#
# `GymEnvironment` takes what `gymnasium.make` takes. Observations become text; text becomes an action. Here the lake
# is one row: start, ice, goal.

# %%
lake = {"env_id": "FrozenLake-v1", "make_kwargs": {"desc": ["SFG"], "is_slippery": False}}
task = al.Task("lake", "Walk to the goal.", {"seed": 0})
walk = GymEnvironment(task, **lake, actions=["left", "down", "right", "up"])
print(walk.reset()[0])

# %%
for said in ("I go right.", "dance", "right"):
    print(f"{said:12}", walk.step(al.Action(said)))
walk.close()

# %% [markdown]
# The observation is the number of the field. Text that names no action takes a turn, earns nothing and is answered by
# what can be done.

# %% [markdown]
# ## Train in it
#
# A tiny random model knows no words. So `act` makes every character a move: its code modulo 4. Four moves are allowed;
# chance alone reaches the goal now and then.

# %%
model = al.tiny_model(model_type="qwen2")
options = {"group_size": 8, "groups_per_step": 4, "max_concurrency": 16, "max_tokens": 1, "tokens_per_slot": 256}
options |= {"lora_rank": 0, "learning_rate": 3e-3, "micro_batch_tokens": 1024}
learner = al.GRPOLearner(
    model=model,
    agent_class=al.ModelAgent,
    env_class=GymEnvironment,
    env_kwargs={**lake, "act": lambda text: ord(text[0]) % 4 if text else 0, "max_turns": 4},
    config=al.GRPOConfig(**options),
)

# %%
run = learner.train(itertools.repeat(task), steps=30, name="lake")
run

# %% [markdown]
# *The dashboard while it trained, and frozen at the end: what each part did in the last minute, what the time of the device
# went into, and the reward.*

# %%
run.wait()
viz.curves(run.metrics);

# %% [markdown]
# *The share of walks that reach the goal, update by update: by chance at first, nearly always at last.*
#
# It must really have risen:

# %%
rewards = [row["reward_mean"] for row in run.metrics]
first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
print(f"{first:.0%} of the walks reach the goal in the first five updates, {last:.0%} in the last five")
assert last > first + 0.2


# %% [markdown]
# ## An environment of your own
#
# Two methods: what is seen first, and what comes of an action. One object is one episode, so what it remembers lies on
# `self`. This one shows traffic lights one after the other: red means stop, green means go.

# %%
class TrafficLights(al.BaseTaskEnv):
    """Shows the lights of `task.data["lights"]`; each right answer earns its share of 1."""

    def _initial_observation(self):
        return self.task.data["lights"][0]

    def _step_impl(self, action):
        lights = self.task.data["lights"]
        right = action.value.strip() == {"red": "stop", "green": "go"}[lights[self.turn]]
        done = self.turn + 1 == len(lights)
        return al.EnvStepResult(None if done else lights[self.turn + 1], right / len(lights), done)


# %% [markdown]
# `self.turn` counts the steps. `max_turns`, a step after the end and a reward that is no number are looked after by the
# base class. `check_environment` finds what people get wrong, such as state that episodes share:

# %%
road = al.Task("road", "", {"lights": ["red", "green", "green"]})
check_environment(TrafficLights, road, actions=["stop", "go", "walk"])

# %% [markdown]
# Nothing was found. A scripted engine plays an episode without any model, through the same code as training does:

# %%
engine = al.ScriptedEngine(["stop", "go", "stop"])
episode = al.run_episode(engine, road, agent_class=al.ModelAgent, env_class=TrafficLights)
print(f"reward {episode.reward:.2f}")
viz.show_trajectory(episode, engine.tokenizer)

# %% [markdown]
# *What the policy said is coloured; the lights are the environment's. The last answer was wrong, so the reward is two
# thirds.*

# %% [markdown]
# ## A bash terminal
#
# `al.tasks.terminal` draws tasks whose files are put into a sandbox. Tool calls run there; text ends the episode, and
# what is then left in the sandbox is judged.

# %%
chore = next(iter(al.tasks.terminal(seed=0, kinds=["count"], num_files=4)))
terminal = Terminal(chore)
print(terminal.reset()[0])

# %%
level = chore.prompt.split("begin with ")[1].split("?")[0]
for command in ("find . -name '*.log'", f"cat $(find . -name '*.log') | grep -c ^{level} | tee answer.txt"):
    result = terminal.step(al.Action(ToolCall("bash", {"command": command})))
    print(result.observation[0].text)

# %%
print(terminal.step(al.Action("Done.")))
terminal.close()

# %% [markdown]
# The file holds the right number: reward 1. To train a model on such tasks give it the same tool:
#
# ```python
# learner = al.GRPOLearner(
#     model=al.load_model("Qwen/Qwen2.5-1.5B-Instruct"),
#     agent_class=al.ToolAgent,
#     agent_kwargs={"tool_map": {"bash": al.tools.Bash}},
#     env_class=al.environments.Terminal,
# )
# run = learner.train(al.tasks.terminal(seed=0), steps=100)
# ```

# %% [markdown]
# ## Exercises
#
# 1. Make the lake two rows deep. What do you change?
#
# <details><summary>Answer</summary>
#
# `"desc": ["SF", "HG"]` in `make_kwargs`. Chance reaches the goal less often, so take more episodes per update
# (`groups_per_step=8`) and more updates.
#
# </details>
#
# 2. Let `TrafficLights` end at the first wrong answer.
#
# <details><summary>Answer</summary>
#
# `done = not right or self.turn + 1 == len(lights)`.
#
# </details>
#
# 3. What happens if `_step_impl` raises?
#
# <details><summary>Answer</summary>
#
# The episode is recorded with the error, has no reward, and its group is compared without it. The run goes on, until
# more than `max_failed_groups` groups have failed.
#
# </details>
#
# **Next:** [08_sft_then_rl](08_sft_then_rl.ipynb)
