"""The token record of one episode: sampled ids and appended ids, never text encoded again."""

from collections.abc import Sequence

from agentlab.chat import ChatFormat
from agentlab.types import Completion, Message, TokenRow


class Transcript:
    """Grows with an episode; owned by the loop.

    `prompt()` of a turn begins with the prompt and the sampled tokens of the turn before. Where the
    agent or the chat template rewrites what was said before, a new row is begun.
    """

    def __init__(self, chat: ChatFormat):
        self._chat = chat
        self._seen: list[Message] = []
        self._tokens: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._sampled: tuple[int, ...] | None = None
        self._finished: list[TokenRow] = []

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids to sample from, after everything in `messages`."""
        known = len(self._seen)
        if self._sampled is None:
            self._restart(messages)
        elif self._goes_on(messages):
            self._append(self._chat.extend(self._sampled, messages[known + 1 :]))
        else:
            self._finished.append(self._row())
            self._restart(messages)
        self._seen = [dict(message) for message in messages]
        return tuple(self._tokens)

    def _goes_on(self, messages: Sequence[Message]) -> bool:
        """Whether the messages are those seen before, the sampled turn, and what is new."""
        known = len(self._seen)
        kept = list(messages[:known]) == self._seen and len(messages) > known
        return kept and messages[known]["role"] == "assistant" and self._chat.appends(self._seen, messages)

    def sampled(self, completion: Completion) -> None:
        """Append what the policy sampled."""
        self._tokens += completion.tokens
        self._mask += [1] * len(completion.tokens)
        self._logprobs += completion.logprobs
        self._versions += completion.policy_versions
        self._sampled = completion.tokens

    def rows(self) -> tuple[TokenRow, ...]:
        """All rows so far, those without a sampled token left out."""
        return tuple(row for row in (*self._finished, self._row()) if 1 in row.loss_mask)

    def _restart(self, messages: Sequence[Message]) -> None:
        self._tokens, self._mask, self._logprobs, self._versions = [], [], [], []
        self._append(self._chat.start(messages))

    def _append(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        self._mask += [0] * len(tokens)
        self._logprobs += [0.0] * len(tokens)
        self._versions += [-1] * len(tokens)

    def _row(self) -> TokenRow:
        return TokenRow(tuple(self._tokens), tuple(self._mask), tuple(self._logprobs), tuple(self._versions))
