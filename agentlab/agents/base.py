"""What every agent is: it keeps a conversation, and turns what the model says into actions."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from agentlab.errors import ConfigError
from agentlab.types import Action, Message, ToolResult


class ConversationAgentBase(abc.ABC):
    """An agent that keeps its conversation in `messages`. One episode owns it.

    The rollout calls, in turn: `update_from_env` with the first observation; then, until the
    environment is done, `update_from_model` with what was sampled and `update_from_env` with what
    came of it. The model is always asked to go on after the last of `messages`.

    Subclasses write `update_from_model`. It should begin with `self.record_response(response)`.

    Args:
        system_prompt: The first message, unless empty.
        examples: Messages that show the task being done, put after the system prompt.

    Raises:
        ConfigError: the system prompt is no text, or an example is no message.
    """

    def __init__(self, system_prompt: str = "", *, examples: Sequence[Message] = ()) -> None:
        if not isinstance(system_prompt, str):
            raise ConfigError(f"system_prompt must be a text, got {type(system_prompt).__name__}.")
        for message in examples:
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise ConfigError(f'Each of examples must be {{"role": ..., "content": ...}}, got {message!r:.80}.')
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self.messages: list[Message] = [*system, *(dict(message) for message in examples)]
        self._turn_begin = len(self.messages)

    @abc.abstractmethod
    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        """Take in what the model said, and decide what to do in the environment.

        Args:
            response: The text of the turn, without its end-of-turn token. Where the prompt ended with "<think>", it
                begins with that tag, so that what was thought can be told from what was said.
            kwargs: What the rollout knows about it, e.g. `finish_reason`.
        """

    def update_from_env(self, observation: Any, reward: float, done: bool, info: Mapping[str, Any]) -> None:
        """Take in what came of the action; the first observation comes this way, too."""
        self.messages += observation_messages(observation)
        self._turn_begin = len(self.messages)

    def record_response(self, response: str) -> None:
        """Append what the model said to the conversation, unless this turn's response is there already."""
        if len(self.messages) == self._turn_begin or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": response})


def observation_messages(observation: Any) -> list[Message]:
    """An observation as messages for the model.

    Text is said by the user; tool results have the role "tool", which `ChatFormat` renders as the
    template can; messages stay as they are; None and empty text say nothing; several of these in a
    list or tuple follow each other. Anything else is shown as `str` shows it.
    """
    if observation is None or (isinstance(observation, str) and not observation):
        return []
    if isinstance(observation, ToolResult):
        named = {"name": observation.name} if observation.name else {}
        return [{"role": "tool", **named, "content": observation.text}]
    if isinstance(observation, Mapping) and _is_message(observation):
        return [dict(observation)]
    if isinstance(observation, list | tuple) and all(map(_is_message, observation)):
        return [message for item in observation for message in observation_messages(item)]
    return [{"role": "user", "content": str(observation)}]


def _is_message(value: Any) -> bool:
    return isinstance(value, ToolResult) or (isinstance(value, Mapping) and isinstance(value.get("role"), str))
