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
# # Agents and environments: one episode by hand
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - what an agent and an environment say to each other, and where the model comes in;
# - what is kept of an episode: token ids, which of them are trained, and the reward;
# - how to write an agent and an environment of your own, and how to check them.
#
# **Time:** half a minute on any CPU; no model, no accelerator. On a TPU it takes the same time, for the TPU is not used
# (not measured there).

# %%
# Installs agentlab where it is missing, and changes nothing else.
if not __import__("importlib.util").util.find_spec("agentlab"):
    # %pip install -q $(ls agentlab-*.whl /kaggle/input/*/agentlab-*.whl 2>/dev/null)

# %%
import agentlab as al

PRESET = "auto"  # or "fast" (seconds, nothing to download), "cpu", "tpu"
preset = al.notebook.preset(PRESET)
preset

# %% [markdown]
# ## The parts
#
# An **episode** is one play of one **task**. Three parts take turns:
#
# 1. the **environment** shows what is to be done (an *observation*);
# 2. the **model** goes on writing after all that was said so far (a *turn*);
# 3. the **agent** reads the turn and makes an *action* of it; the environment answers with the next observation,
#    a reward, and whether the episode is over.
#
# The model costs most of the time and needs an accelerator. Here a script stands in for it: an engine that says
# what we tell it to say. Everything else is as it is in a real run.

# %%
task = al.Task("shop/0", "What do 3 lamps cost?", {"answer": "126", "table": {"lamp": 42, "rug": 75}})
engine = al.ScriptedEngine(["price(lamp)", "calculator(3 * 42)", "126"])
tools = {"price": al.tools.Lookup(), "calculator": al.tools.Calculator()}
task

# %% [markdown]
# *The script has three turns: look a price up, multiply, answer. The price list is in the task, out of the model's
# sight: only the tool can read it.*
#
# ## 1. Reset
#
# The environment runs the tools and scores the answer. `reset` begins the episode.

# %%
environment = al.ToolEnvironment(task, tool_map=tools, reward_fn=al.rewards.same_number, max_turns=4)
observation, info = environment.reset()
observation

# %% [markdown]
# The agent keeps the conversation. It tells the model which tools there are, and how to call them.

# %%
agent = al.ToolAgent("You are a shop assistant.", tool_map=tools, tool_parser_name="short")
agent.update_from_env(observation, 0.0, False, info)
for message in agent.messages:
    print(f"{message['role']}: {message['content']}\n")

# %% [markdown]
# ## 2. The prompt, as token ids
#
# A model reads and writes numbers, *token ids*. The chat template says how the conversation becomes one text, and the
# tokenizer how the text becomes ids. (The scripted engine's tokenizer takes one id per byte.)

# %%
from agentlab.chat import ChatFormat
from agentlab.rollout import Transcript

chat = ChatFormat(engine.tokenizer)
transcript = Transcript(chat)
prompt = transcript.prompt(agent.messages)
print(len(prompt), "ids:", *prompt[:12], "...")
print(engine.tokenizer.decode(prompt[-62:]))

# %% [markdown]
# *The prompt ends where the assistant is about to speak: there the model goes on.*
#
# ## 3. Generate
#
# A request goes to the engine, a completion comes back: ids, and how likely the model found each of them.

# %%
from functools import partial

from agentlab.rollout import run_served
from agentlab.types import GenerationRequest

request = GenerationRequest("by-hand/0", "by-hand", prompt, al.SamplingParams(max_tokens=64))
completion = run_served(engine, partial(engine.generate, request))
transcript.sampled(completion)
completion

# %% [markdown]
# *`finish_reason="stop"`: the last id is the end of the turn. The ids are kept as they are: they are never made from
# text a second time, for text does not always give the same ids again.*
#
# ## 4. Parse
#
# The agent reads the text of the turn. It finds a tool call in it: that is the action.

# %%
action = agent.update_from_model(chat.decode(completion.tokens))
action

# %% [markdown]
# ## 5. Step
#
# The environment runs the call. The answer is the next observation; nothing is earned yet, and it is not over.

# %%
result = environment.step(action)
agent.update_from_env(result.observation, result.reward, result.done, result.info)
result

# %% [markdown]
# ## The second turn, and the third
#
# The next prompt begins with the first one and what the model said, id by id; the tool's answer stands behind.

# %%
second = transcript.prompt(agent.messages)
assert second[: len(prompt) + len(completion.tokens)] == prompt + completion.tokens
print(engine.tokenizer.decode(second[len(prompt) :]))

# %%
turns, prompt = [], second
while not result.done:
    request = GenerationRequest(f"by-hand/{len(turns) + 1}", "by-hand", prompt, request.sampling)
    completion = run_served(engine, partial(engine.generate, request))
    transcript.sampled(completion)
    action = agent.update_from_model(chat.decode(completion.tokens))
    result = environment.step(action)
    agent.update_from_env(result.observation, result.reward, result.done, result.info)
    turns.append((chat.decode(completion.tokens), result.observation, result.reward, result.done))
    prompt = () if result.done else transcript.prompt(agent.messages)
environment.close()
turns

# %% [markdown]
# *The last turn calls no tool, so it is the answer: the environment gives 1, and the episode is over.*

# %%
assert result.reward == 1.0 and result.done

# %% [markdown]
# ## What is kept
#
# One row of ids. The **mask** is 1 where the model wrote, 0 elsewhere: only what it wrote is trained.

# %%
import itertools

row = transcript.rows()[0]
for mask, pairs in itertools.groupby(zip(row.tokens, row.loss_mask, strict=True), key=lambda pair: pair[1]):
    text = engine.tokenizer.decode([token for token, _ in pairs])
    print("trained" if mask else "given  ", repr(text if len(text) < 90 else text[:40] + " ... " + text[-40:]))

# %% [markdown]
# *Given, trained, given, trained: the template's ids and the tools' answers are read by the model, never learned.*
#
# ## The same in one line
#
# `run_episode` does all of the above. What it returns is a `Trajectory`, the record of an episode.

# %%
from agentlab import viz

trajectory = al.run_episode(
    al.ScriptedEngine(["price(lamp)", "calculator(3 * 42)", "126"]),
    task,
    agent_class=al.ToolAgent,
    agent_kwargs={"tool_map": tools, "tool_parser_name": "short"},
    env_class=al.ToolEnvironment,
    env_kwargs={"tool_map": tools, "reward_fn": al.rewards.same_number},
)
viz.show_trajectory(trajectory, engine.tokenizer)


# %% [markdown]
# *What the model wrote is coloured; the line on top says the reward, the turns and the time.*
#
# ## An environment of your own
#
# Two methods: what is seen first, and what comes of an action.

# %%
class Thermostat(al.BaseTaskEnv):
    """Says whether it is too warm or too cold; reward 1 for the right temperature."""

    def _initial_observation(self):
        return self.task.prompt

    def _step_impl(self, action):
        wanted = self.task.data["wanted"]
        if action.value == wanted:
            return al.EnvStepResult("Just right.", 1.0, True)
        return al.EnvStepResult("Too warm." if action.value > wanted else "Too cold.", 0.0, False)


# %% [markdown]
# ## An agent of your own
#
# One method: from what the model said to an action. Here the action is the last whole number of the turn.

# %%
import re


class NumberAgent(al.ConversationAgentBase):
    """The action is the last whole number of the turn."""

    def update_from_model(self, response, **kwargs):
        self.record_response(response)
        numbers = re.findall(r"-?\d+", response)
        return al.Action(int(numbers[-1]) if numbers else 0)


# %% [markdown]
# Both can be checked before a model is trained on them: each finding says what is wrong and how to mend it.

# %%
room = al.Task("room/0", "Which temperature do I want?", {"wanted": 21})
print(al.environments.check_environment(Thermostat, room, actions=[18, 24, 21]))
print(al.agents.check_agent(NumberAgent))

# %% [markdown]
# *Two empty results: nothing was found. Now a play.*

# %%
thermostat = {"agent_class": NumberAgent, "env_class": Thermostat}
played = al.run_episode(al.ScriptedEngine(["I say 18.", "Then 24.", "21"]), room, **thermostat)
assert played.reward == 1.0
[(turn.response, turn.action.value, turn.observation) for turn in played.turns]

# %% [markdown]
# ## Many episodes
#
# `evaluate` plays many tasks at once and counts. This script always says 21, so it finds 21 and nothing else.

# %%
rooms = [al.Task(f"room/{wanted}", "Which temperature?", {"wanted": wanted}) for wanted in range(18, 26)]
found = al.evaluate(al.ScriptedEngine("21"), rooms, **thermostat, config=al.RolloutConfig(max_turns=3))
print(found)
assert found.solved == tuple(task.data["wanted"] == 21 for task in rooms)

# %% [markdown]
# *One of eight is solved; the interval says how sure that is with so few.*
#
# ## When something breaks
#
# A bad episode is no crash: it is a record that says where it broke, and it has no reward.

# %%
broken = al.run_episode(engine, al.Task("room/?", "Which temperature?"), **thermostat)
broken.reward, broken.failure.stage, broken.failure.error

# %% [markdown]
# *The task has no `wanted`, so the first step raised. In training such an episode is left out, and counted.*
#
# ## Exercises
#
# 1. Let the environment give half a point for a temperature that is one degree off.
#
# <details><summary>Answer</summary>
#
# Before the last line of `_step_impl`:
#
# ```python
# if abs(action.value - wanted) == 1:
#     return al.EnvStepResult("Almost.", 0.5, True)
# ```
#
# </details>
#
# 2. The agent takes 0 where the model names no number. Why is that a bad idea, and what is better?
#
# <details><summary>Answer</summary>
#
# The model is answered "Too cold." although it said nothing of a temperature, and learns the wrong thing from it. Better:
# `return al.Action(response)` there, and an environment that says "Name a whole number." to a text.
#
# </details>
#
# 3. Which ids of the row would be trained if the tool's answer were wrong?
#
# <details><summary>Answer</summary>
#
# The same: the mask depends on who wrote an id, not on what it says.
#
# </details>
#
# **Next:** [03_tools](03_tools.ipynb) trains a model to use two tools.
