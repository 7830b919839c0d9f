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
# # Watch and diagnose: find the bottleneck of a run
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - how to watch a run while it goes on: dashboard, numbers, episodes in flight;
# - how to look back: timeline, a trace for Perfetto, a profile of the device for XProf, a report in one file;
# - how to let the run say what it waited for, mend it, and see that it helped.
#
# **Time:** about one minute on two CPU cores, less with `PRESET = "fast"`; on a TPU it has not been measured yet.

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
# ## A run with something wrong
#
# A tiny random model talks to an environment that answers after half a second. One of the options below is badly chosen
# on purpose. You could guess which; we will let the run say it.

# %%
model = al.tiny_model(SEED)
tasks = [al.Task(f"{number}", "Say a number.") for number in range(1000)]
world = al.environments.Latency(al.TaskEnvironment, 0.5)
roles = {"agent_class": al.ModelAgent, "env_class": world}
roles["env_kwargs"] = {"reward_fn": al.rewards.regex(r"\d")}
options = {"group_size": 4, "groups_per_step": 4, "max_tokens": 8, "num_slots": 32}
options |= {"tokens_per_slot": 64, "row_tokens": 64, "micro_batch_tokens": 64}
options |= {"learning_rate": 1e-3, "lora_rank": 0, "seed": SEED}
steps = 6 if FAST else 12

# %% [markdown]
# Programs are compiled when they are first used. A short run first keeps that out of what follows.

# %%
config = al.GRPOConfig(max_concurrency=4, **options)
al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=3, name="warm-up").wait();

# %%
run = al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=steps, name="slow")
run

# %% [markdown]
# *The dashboard. Above: how far it is, tokens per second, episodes in flight. Left: what was busy during the last minute.
# Right: the reward. Below: the verdict in one sentence. On Colab the cell is busy meanwhile; interrupt it to go on.*
#
# ## While it runs
#
# A snapshot holds everything that a display needs, taken at one moment.

# %%
now = run.snapshot()
print(now.status, f"{now.step} of {now.steps} updates,", now.counts)
for episode in now.episodes[:4]:
    since_s = (now.now_ns - episode.since_ns) / 1e9
    print(f"group {episode.group_id}, episode {episode.episode}: {episode.stage} for {since_s:.2f} s")

# %%
run.wait();

# %% [markdown]
# ## Look back: the timeline
#
# One lane per kind of work. Light grey in the device's lane is time in which nothing was computed.

# %%
run.timeline();

# %% [markdown]
# *The device works in short bursts; between them the environments are busy, never with more than four episodes.*
#
# The last seconds, larger:

# %%
end = run.metrics[-1]["time_s"]
run.timeline(start=max(0.0, end - 4.0), stop=end);

# %% [markdown]
# *Each burst is a few tokens of four episodes; then all four wait half a second.*
#
# ## Let the run say it

# %%
verdict = run.diagnose()
verdict

# %% [markdown]
# *The sentence says how busy the device was and what it waited for; below stands what would help.*

# %%
cause = next(iter(verdict.causes))
print(f"The device was idle most of all because of: {cause} ({verdict.causes[cause]:.0%} of the time)")
assert cause == "environment"

# %% [markdown]
# ## Mend it
#
# More episodes in flight: while some wait, others are sampled. That is one option, `max_concurrency`.

# %%
config = al.GRPOConfig(max_concurrency=32, **options)
mended = al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=steps, name="mended")
mended.wait()
runs = {"slow": run, "mended": mended}
viz.timelines(runs);

# %% [markdown]
# *The same number of updates in less time: the environments are used by many episodes at once.*

# %%
seconds = {}
for name, one in runs.items():
    first, last = one.metrics[0], one.metrics[-1]
    seconds[name] = (last["time_s"] - first["time_s"]) / (steps - 1)
print({name: f"{value:.2f} s per update" for name, value in seconds.items()})
assert seconds["mended"] < 0.7 * seconds["slow"]

# %%
print(mended.diagnose())

# %% [markdown]
# *What remains is said again, smaller: mending one bottleneck shows the next.*
#
# ## Keep it: a trace for Perfetto
#
# The trace has every single span: open it in [ui.perfetto.dev](https://ui.perfetto.dev) (nothing is uploaded; the page
# reads it in your browser). Each thread and each kind of work is a row, and each episode can be followed.

# %%
path = run.save_trace("slow.pftrace")
print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB, {len(run.spans()):,} spans")

# %% [markdown]
# *Zoom with W and S, move with A and D, click a span to see its group, episode and turn.*
#
# ## Deeper: a profile of the device for XProf
#
# The spans say *that* the device was busy; a profile says with which operations. It is taken of a run that is under way.

# %%
import time

third = al.GRPOLearner(model=model, config=config, **roles).train(tasks, steps=100, name="profiled")
while third.snapshot().step < 2:
    time.sleep(0.1)
profile = third.xprof(seconds=1.0, folder="profile")
third.stop()
print(*sorted(file.suffixes[-1] for file in profile.rglob("*") if file.is_file()))

# %% [markdown]
# *Open the folder with `pip install xprof` and `xprof profile`, or with TensorBoard. On a TPU it shows each operation
# on the chip, with our names (decode, forward and backward, optimizer) above them.*
#
# ## A report to send around
#
# One HTML file with curves, timeline, verdict, configuration and sample episodes.

# %%
report = run.report("report.html")
print(f"{report.name}: {report.stat().st_size / 1e3:.0f} kB")

# %% [markdown]
# ## Exercises
#
# 1. Plant another bottleneck: `al.GRPOConfig(num_slots=2, max_concurrency=32, ...)`. What does the verdict say?
#
# <details><summary>Answer</summary>
#
# That requests wait for one of two slots: the engine decodes two episodes at once, the others stand in line. Raise
# `num_slots`; 0 takes as many as `max_concurrency`.
#
# </details>
#
# 2. And a slow reward function: `{"reward_fn": ...}` with a `time.sleep(0.5)` in it?
#
# <details><summary>Answer</summary>
#
# The cause is then called `reward`. Rewards run on worker threads, so more episodes in flight hide it, too; better
# make the function quicker.
#
# </details>
#
# **Next:** [06_grpo_family](06_grpo_family.ipynb) compares algorithms on one task.
