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
# # Your runtime: what is here, and what works
#
# *To open this in Colab: File > Upload notebook; in Kaggle: File > Import Notebook. Then upload (Colab: Files, at the left; Kaggle: Add Input) the wheel that `pip wheel --no-deps .` makes of agentlab.*
#
# You will learn
#
# - what this machine has, and whether agentlab misses anything on it;
# - how a live dashboard reaches your browser here;
# - what a run looks like, before you train anything: half a minute of a simulated one.
#
# **Time:** one minute on any CPU; on a TPU it should take the same (not measured yet).

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
# ## What is here

# %%
from agentlab.platform.detect import detect

machine = detect()
print(f"kind: {machine.kind}, Python {machine.python}, {machine.system}, {machine.cores} processor cores")
print("devices that compute:", *(device.kind for device in machine.devices))

# %% [markdown]
# *`kind` is colab, kaggle, jupyter or terminal. Devices are what the model is computed on: "cpu", or one line per chip
# of a TPU.*
#
# The doctor looks at the rest: versions, memory, disk. It says what is missing, and the line that mends it.

# %%
from agentlab import doctor

checks = doctor.examine()
print(doctor.table(checks))
print(doctor.verdict(checks))

# %%
assert not any(check.status == "missing" for check in checks)

# %% [markdown]
# *"ok" is well, "optional" is not needed by the tutorials, "warning" is worth a look.*
#
# ## How a dashboard reaches you
#
# A run goes on in the background, while the notebook stays free. Its dashboard reaches you in one of three ways:
#
# | way | what to write | how it is refreshed |
# | --- | --- | --- |
# | background | `run.dashboard("background")` | by the run itself, whether a cell is busy or not |
# | watch | `run.watch()` | by that cell, which is busy; interrupting it ends the watching, not the run |
# | iframe | `run.dashboard("iframe")` | a small page that this kernel serves, to this machine only |
#
# `run` alone at the end of a cell takes "watch" on Colab and "background" elsewhere. (Colab and Kaggle: so others
# report; it has not been tried there yet.)
#
# When the run ends, the dashboard becomes a picture that is kept in the notebook. Let us try it. The run is simulated:
# its threads, its episodes and its time are real; model, learning and rewards are not.

# %%
from agentlab.bench.simulated import simulated_run

run = simulated_run(steps=3 if preset == "fast" else 24)
run

# %% [markdown]
# *If the numbers above count up by themselves, background updates work here. If they stand still, use another way.*
#
# While it goes on, the notebook is free:

# %%
print(run.status, run.snapshot().step, "updates done")

# %%
run.dashboard("iframe")

# %% [markdown]
# *The same run as a page of its own: its buttons act even while a cell is busy.*
#
# Now in the foreground: a run can be shown in as many cells as you like. This cell is busy until the run ends; the stop button ends only the watching.

# %%
run.watch()

# %% [markdown]
# *The dashboard, refreshed by the cell itself.*
#
# ## What the pictures say

# %%
run.wait()
run.timeline();

# %% [markdown]
# *Time goes from left to right. "device" is what computes: sampling text, then training. "environments" is the world
# that the agents act in. Light grey is waiting.*

# %%
print(run.diagnose())

# %% [markdown]
# *The same in words: how busy the device was, what it waited for, and what to change.*
#
# ## Exercises
#
# 1. Start a run and, before it ends, another one. What happens?
#
# <details><summary>Answer</summary>
#
# The second is refused: one run at a time. The message names the live run and says how to stop it:
# `al.current_run().stop()`.
#
# </details>
#
# 2. Pause a run and let it go on.
#
# <details><summary>Answer</summary>
#
# `run.pause()`, then `run.resume()`; or the buttons below the dashboard. Episodes in flight are played to their end.
#
# </details>
#
# **Next:** [01_quickstart](01_quickstart.ipynb) trains a real model.
