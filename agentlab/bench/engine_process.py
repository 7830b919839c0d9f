"""One engine in a process of its own, for what a process measures of itself: `python -m agentlab.bench.engine_process`.

One argument, JSON: {"model": name, "slots": 32, "slot": tokens per slot, "warm_up": true, "episodes": 0}. With
episodes it plays that many from a cold start and then once more; else it decodes a sequence in each slot. One line of
JSON comes out.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agentlab.bench.engine_load import PROMPT, gather, play_episodes, random_tokens, request
from agentlab.bench.peers import ask
from agentlab.inference import JaxEngine
from agentlab.models import load_model
from agentlab.rollout.serving import run_served

SLOTS = 32


def ask_process(question: dict[str, Any], folder: str) -> dict[str, Any]:
    """The answer of a new process that keeps its compiled programs in this folder.

    Raises:
        ConfigError: it failed, or did not answer in time; the end of what it wrote is told.
    """
    environment = {**os.environ, "AGENTLAB_COMPILATION_CACHE": folder}
    command = [sys.executable, "-m", "agentlab.bench.engine_process"]
    return ask(command, question, "The process that measures itself", environ=environment)


def measured(question: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked, and tell times and memory of this process."""
    baseline = status_bytes("VmRSS")
    model = load_model(question["model"], progress=False)
    began = time.perf_counter()
    engine = JaxEngine(model, num_slots=question["slots"], tokens_per_slot=question["slot"])
    wall, cpu = time.perf_counter(), time.process_time()
    programs = engine.warm_up(progress=False) if question["warm_up"] else 0
    answer: dict[str, Any] = {
        "programs": programs,
        "warm_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "weights_bytes": 4 * model.config.num_parameters,
        "cache_bytes": engine.plan.cache_bytes,
    }
    if question["episodes"]:
        play_episodes(engine, question["episodes"], "cold")
        answer["cold_s"] = time.perf_counter() - began
        answer["tokens"] = engine.stats().tokens_sampled
        answer["warm_episodes_s"] = play_episodes(engine, question["episodes"], "warm")
    else:
        requests = [request(str(i), random_tokens(PROMPT, str(i)), 8, seed=i) for i in range(question["slots"])]
        run_served(engine, lambda: gather(engine, requests))
    peak = status_bytes("VmHWM")
    return answer | {"peak_bytes": peak, "grown_bytes": peak - baseline, "compilations": engine.stats().compilations}


def status_bytes(field: str) -> int:
    """A figure of this process's memory, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(json.loads(sys.argv[1]))) + "\n")
