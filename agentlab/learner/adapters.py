"""`save_adapters`: what was trained, alone, as peft and those who serve adapters read it."""

from pathlib import Path

from agentlab.errors import ConfigError
from agentlab.learner.imitation import SFTTrainer
from agentlab.learner.rl import AgenticRLLearner
from agentlab.models import Adapters, Model, adapters_of, write_adapters
from agentlab.run import Run


def save_adapters(
    trained: Run | AgenticRLLearner | SFTTrainer | Model, folder: str | Path, *, base: str | Path | None = None
) -> Path:
    """Write the low-rank adapters that were trained, without the model that they belong to.

    The folder appears complete or not at all; `peft` loads it, and so does `load_adapters`. Adapters that were
    trained on quantised weights (`base_type`) belong to those: on the unquantised model they are off by the rounding.

    Args:
        trained: A run, whose newest adapters are written whether it goes on or has ended; a learner, likewise; or a
            model with adapters.
        folder: Must not exist yet, or be empty.
        base: Name or path of the model that they belong to, as the file will say; None takes the name by which that
            model was loaded. Needed where it had been trained before and its weights have no name.

    Returns:
        The folder.

    Raises:
        ConfigError: there are no adapters: all weights were trained, or none yet; or the model that they belong to
            has no name.
        ModelError: the folder holds something already, or cannot be written (e.g. full disk).
    """
    found = _adapters(trained)
    if found is None:
        raise ConfigError(
            f"{trained!r:.80} has no adapters to save: a run has some after its first update, unless lora_rank=0 "
            "trains all weights; then write those with save_model(learner.trained_model, folder)."
        )
    return write_adapters(found, folder, base=None if base is None else str(base))


def _adapters(trained: Run | AgenticRLLearner | SFTTrainer | Model) -> Adapters | None:
    if isinstance(trained, Model):
        return adapters_of(trained)
    if isinstance(trained, Run):
        return trained.adapters
    if isinstance(trained, AgenticRLLearner | SFTTrainer):
        return trained.policy.adapters
    raise ConfigError(
        f"save_adapters takes a run, a learner or a model, got {type(trained).__name__}: {trained!r:.60}."
    )
