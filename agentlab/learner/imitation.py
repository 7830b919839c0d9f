"""The front door of supervised fine-tuning: a model and conversations become a run."""

import collections
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

from agentlab.chat import ChatFormat
from agentlab.inference import IdleEngine
from agentlab.learner.checks import check_made, check_steps
from agentlab.learner.weights import Begun, CheckpointPlan, TrainedWeights
from agentlab.models import Model, adapters_of, merged
from agentlab.rollout.conversations import ConversationFeed, check_conversations
from agentlab.rollout.sinks import Sink
from agentlab.run import Parts, Run
from agentlab.training import SFTConfig, Trainer
from agentlab.training.adapters import check_adapters
from agentlab.training.sft import sft
from agentlab.types import Policy


class SFTTrainer:
    """Teaches a model by example: what the assistant says in conversations becomes likelier.

    Used by the main thread. Batches, updates, run and dashboard are those of reinforcement learning;
    a turn is tokenised as the engine would sample it, so a model learns here the format that it needs there.

    Args:
        model: What to train; see `load_model`. With adapters (`load_adapters`) training goes on from them.
        config: How to train; `lora_rank=0` trains all weights.

    Raises:
        ConfigError: an option is unknown or impossible.
    """

    def __init__(self, *, model: Model, config: SFTConfig | None = None):
        check_made(model, Model, "model", hint=" Use al.load_model(...).")
        self.model = model
        self.config = config if config is not None else SFTConfig()
        check_made(self.config, SFTConfig, "config")
        check_adapters(model, self.config.lora_rank, self.config.lora_alpha)
        self._weights = TrainedWeights(merged(model), lambda: Trainer(model, self.config, sft), adapters_of(model))

    def train(
        self,
        conversations: Iterable[Any],
        *,
        steps: int,
        name: str = "sft",
        checkpoint_dir: str | PathLike[str] | None = None,
        checkpoint_every: int = 100,
        checkpoint_every_s: float = 300.0,
        keep_checkpoints: int = 3,
        resume: bool = False,
        sinks: Sink | Sequence[Sink] = (),
    ) -> Run:
        """Start training in the background and return at once.

        Args:
            conversations: Lists of messages {"role", "content"}, or dictionaries with "messages" and perhaps
                "tools". Contents are text or lists of text parts. A message of the assistant may have
                "tool_calls" (in OpenAI's form), "reasoning_content", and a "weight" of its tokens in the loss;
                results have the role "tool". What would not be honoured is refused, see
                `agentlab.chat.read_conversation`. A list is gone through again and again, in another order
                each time; anything else once.
            steps: Updates to do, those before a resumption included.
            name: Shown wherever the run is.
            checkpoint_dir: As the others, see `AgenticRLLearner.train`.
            sinks: Likewise.

        Raises:
            ConfigError: steps is below 1, there is no conversation, one of a list is malformed, or the
                checkpoints are of another model or configuration.
            RunActiveError: another run lives in this process.
            RunError: the last update of a stopped run is still being computed, or an update failed.
        """
        check_steps(steps)
        check_conversations(conversations)
        plan = CheckpointPlan.of(checkpoint_dir, checkpoint_every, checkpoint_every_s, keep_checkpoints, resume)
        begun = self._weights.begin(plan, sinks, {})
        return Run(name, lambda: self._parts(steps, begun), conversations, steps)

    @property
    def policy(self) -> Policy:
        """The newest weights; frozen."""
        return self._weights.policy

    @property
    def trained_model(self) -> Model:
        """The model with the newest weights, adapters folded in, for `save_model` or a `GRPOLearner`."""
        return self._weights.on(self.model)

    def _parts(self, steps: int, begun: Begun) -> Parts:
        self._weights.refresh()
        context = self.model.config.max_position
        feed = ConversationFeed(
            ChatFormat(self.model.tokenizer, template_options=self.config.template_options),
            tool_parser_name=self.config.tool_parser_name,
            per_step=self.config.conversations_per_step,
            max_tokens=min(self.config.max_conversation_tokens or context, context),
            seed=self.config.seed,
            limit=steps * self.config.conversations_per_step,
            progress=begun.progress,
        )
        engine = IdleEngine(self.model.tokenizer, context)
        notes = collections.deque(begun.notes, maxlen=8)
        return Parts(
            engine,
            feed,
            self._weights.thread(begun, notes.append),
            self._weights.publish,
            rewarded=False,
            record=begun.record,
            schedule=begun.schedule(),
            sinks=begun.sinks,
            notes=notes,
            adapters=self.policy.adapters,
        )
