"""One GRPO step of an agent with tools, end to end, alone in a process: here, and in another library.

Both sides are asked the same question (model shape, prompts, turns, tokens, seconds per tool call) and answer
with the seconds of each step, the peak memory of their process and the tokens that they sampled. All weights
are trained, in float32; they are random, so that no turn ends before its last token.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, final

from agentlab.agents import ModelAgent
from agentlab.bench.contract import Row
from agentlab.bench.peers import ask, ask_peer
from agentlab.environments import BaseTaskEnv
from agentlab.learner import GRPOConfig, GRPOLearner
from agentlab.models import load_model, tiny_model
from agentlab.models.tokenizer import load_tokenizer
from agentlab.rollout.sinks import Sink
from agentlab.types import EnvStepResult, Task

TOKENIZER_OF = "HuggingFaceTB/SmolLM2-135M-Instruct"
SYSTEM = "You are a helpful assistant."
PROMPTS = tuple(f"What is {a} times {b}? Use the calculator." for a, b in ((12, 34), (56, 78), (91, 23), (45, 67)))
OBSERVATION = "The calculator says: 408."


@dataclass(frozen=True)
class Answer:
    """What one library needed."""

    step_s: tuple[float, ...]
    """Of each step; the first ones compile."""
    cpu_s: tuple[float, ...]
    """Processor time of each: it says who computes less even where others use the machine."""
    peak_bytes: int
    sampled_tokens: int
    """In all steps."""

    @property
    def warm_s(self) -> float:
        """The median of the steps after the first."""
        return median(self.step_s[1:])

    @property
    def warm_cpu_s(self) -> float:
        """Likewise."""
        return median(self.cpu_s[1:])

    @classmethod
    def of(cls, answered: Mapping[str, Any]) -> "Answer":
        times = tuple(answered["step_s"]), tuple(answered["cpu_s"])
        return cls(*times, answered["peak_bytes"], answered["sampled_tokens"])


@final
class Clock(Sink):
    """Notes when each update ends, on the clock of the wall and of the processor."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = [time.perf_counter()], [time.process_time()]

    def open(self, name: str, before: Sequence[Any]) -> None:
        pass

    def write(self, row: Any) -> None:
        self.wall_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())

    def close(self) -> None:
        pass


class Turns(BaseTaskEnv):
    """So many turns, each but the last with a tool that takes its time; every second episode is rewarded."""

    def __init__(self, task: Task, *, turns: int, tool_s: float, observation: str):
        super().__init__(task, max_turns=turns)
        self.turns, self.tool_s, self.observation = turns, tool_s, observation

    def _initial_observation(self) -> str:
        return self.task.prompt

    def _step_impl(self, action: Any) -> EnvStepResult:
        done = self.turn == self.turns - 1
        if not done:
            time.sleep(self.tool_s)
        return EnvStepResult(self.observation, float(len(str(action.value)) % 2), done)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Train for some steps in this process."""
    model = replace(tiny_model(0, **question["shape"]), tokenizer=load_tokenizer(Path(question["tokenizer"])))
    num_prompts, steps = len(question["prompts"]), question["steps"]
    learner = GRPOLearner(
        model=model,
        agent_class=ModelAgent,
        agent_kwargs={"system_prompt": question["system"]},
        env_class=Turns,
        env_kwargs={key: question[key] for key in ("turns", "tool_s", "observation")},
        config=GRPOConfig(
            group_size=question["group_size"],
            groups_per_step=num_prompts,
            max_concurrency=num_prompts * question["group_size"],
            max_off_policy_steps=0,
            max_tokens=question["new_tokens"],
            tokens_per_slot=128,
            row_tokens=256,
            micro_batch_tokens=256,
            lora_rank=0,
            learning_rate=1e-6,
        ),
    )
    tasks = [{"id": f"{step}/{prompt}", "prompt": prompt} for step in range(steps) for prompt in question["prompts"]]
    clock = Clock()
    run = learner.train(tasks, steps=steps, sinks=clock).wait()
    return {
        "step_s": [after - before for before, after in pairwise(clock.wall_s)],
        "cpu_s": [after - before for before, after in pairwise(clock.cpu_s)],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "sampled_tokens": int(run.snapshot().engine.tokens_sampled),
    }


def ask_alone(question: Mapping[str, Any]) -> Answer:
    """The answer of a process of its own, so that its peak memory is that of the steps.

    Raises:
        ConfigError: it failed or did not answer in time; the end of what it wrote is told.
    """
    return Answer.of(ask([sys.executable, "-m", "agentlab.bench.agentic_step"], question, "The step"))


def question_of(shape: Mapping[str, Any], tokenizer: str, *, tool_s: float, steps: int) -> dict[str, Any]:
    """32 episodes of 2 turns of 8 tokens each in every step."""
    return {
        "shape": dict(shape), "tokenizer": tokenizer, "system": SYSTEM, "prompts": list(PROMPTS),
        "group_size": 8, "turns": 2, "new_tokens": 8, "observation": OBSERVATION, "tool_s": tool_s, "steps": steps,
    }  # fmt: skip


def step_rows(shape: Mapping[str, Any], *, steps: int, peers: Sequence[tuple[str, str]]) -> list[Row]:
    """Our steps without and with tools that take half a second, and the same of peers, (name, its Python)."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        load_model(TOKENIZER_OF).tokenizer.save_pretrained(folder)
        for tool_s, times in ((0.0, 4.0), (0.5, 6.0)):
            question = question_of(shape, folder, tool_s=tool_s, steps=steps)
            ours = ask_alone(question)
            rows += plain_rows(f"step, tools of {tool_s:g} s", ours, steps)
            for name, python in peers:
                theirs = Answer.of(ask_peer(name, python, question))
                rows += plain_rows(f"{name}: step, tools of {tool_s:g} s", theirs, steps)
                rows += compared(name, ours, theirs, tool_s, times)
    return rows


def plain_rows(what: str, found: Answer, steps: int) -> list[Row]:
    """One library's figures."""
    return [
        Row(what, found.warm_s, unit="s"),
        Row(f"{what}, processor time", found.warm_cpu_s, unit="s"),
        Row(f"{what}, sampled tokens", found.sampled_tokens / steps),
        Row(f"{what}, peak memory", found.peak_bytes / 1e9, unit="GB"),
    ]


def compared(name: str, ours: Answer, theirs: Answer, tool_s: float, times: float) -> list[Row]:
    """Ours against theirs."""
    what = f"with tools of {tool_s:g} s"
    return [
        Row.at_least(f"{name} / ours, {what}", theirs.warm_s / ours.warm_s, times),
        Row(f"{name} / ours in processor time, {what}", theirs.warm_cpu_s / ours.warm_cpu_s),
        Row.at_most(f"peak memory, ours / {name}, {what}", ours.peak_bytes / theirs.peak_bytes, 0.5),
    ]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(answer(json.loads(sys.argv[1]))) + "\n")
