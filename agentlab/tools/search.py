"""Search by words over a given corpus: Okapi BM25, in memory."""

import collections
import heapq
import math
import re
from collections.abc import Mapping, Sequence
from typing import final

from agentlab.errors import ConfigError
from agentlab.tools.base import Tool

WORD = re.compile(r"[^\W_]+")


@final
class BM25:
    """An index of texts, ranked for a query; frozen once it is made.

    score(q, d) is the sum over the query's words t of
    ln(1 + (N - n_t + 0.5) / (n_t + 0.5)) · f / (f + k1 · (1 - b + b · |d| / avg)),
    with f the count of t in d, n_t the texts that contain t, N all texts, |d| the words of d, avg their mean. The
    constant factor (k1 + 1) of the original is left out: it changes no order.

    Args:
        texts: What is searched.
        k1: How slowly further occurrences of a word stop counting.
        b: How much long texts are held back, from 0 to 1.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", equation 3.15; the logarithm is
        Lucene's, which is never negative.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise ConfigError(f"k1 must be 0 or more and b lie in 0 to 1, got k1={k1}, b={b}.")
        counts = [collections.Counter(words_of(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(1, len(lengths)) or 1.0
        found: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        for number, count in enumerate(counts):
            for word, times in count.items():
                found[word].append((number, times))
        self._weights: dict[str, list[tuple[int, float]]] = {}
        for word, places in found.items():
            rarity = math.log(1 + (len(texts) - len(places) + 0.5) / (len(places) + 0.5))
            held = [(n, times, k1 * (1 - b + b * lengths[n] / mean)) for n, times in places]
            self._weights[word] = [(n, rarity * times / (times + hold)) for n, times, hold in held]

    def rank(self, query: str, count: int) -> list[tuple[int, float]]:
        """Numbers and scores of the best texts that share a word with the query; of equal ones the first."""
        scores: dict[int, float] = collections.defaultdict(float)
        for word in words_of(query):
            for number, weight in self._weights.get(word, ()):
                scores[number] += weight
        return heapq.nsmallest(count, scores.items(), key=lambda item: (-item[1], item[0]))


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.casefold())


@final
class Search(Tool):
    """Searches documents for words and answers with the passages that fit best.

    Args:
        corpus: Texts, or texts by title.
        top_k: Documents in an answer.
        max_chars: Characters of each that are shown, from its beginning.

    Raises:
        ConfigError: the corpus is empty or holds something else than texts, or an option is impossible.
    """

    def __init__(self, corpus: Mapping[str, str] | Sequence[str], top_k: int = 3, *, max_chars: int = 500) -> None:
        if isinstance(corpus, str) or not corpus:
            raise ConfigError(f"corpus must hold at least one text, as a list or by title, got {corpus!r:.80}.")
        if top_k < 1 or max_chars < 1:
            raise ConfigError(f"top_k and max_chars must be at least 1, got {top_k} and {max_chars}.")
        named = corpus.items() if isinstance(corpus, Mapping) else ((str(n), text) for n, text in enumerate(corpus, 1))
        self.documents: tuple[tuple[str, str], ...] = tuple(named)
        if not all(isinstance(text, str) for _, text in self.documents):
            raise ConfigError("corpus must hold texts only: a list of them, or a dictionary of texts by title.")
        self.top_k, self.max_chars = top_k, max_chars
        self._index = BM25([f"{title}\n{text}" for title, text in self.documents])

    def __call__(self, query: str) -> str:
        """Search.

        Args:
            query: Words to look for.
        """
        found = [self.documents[number] for number, _ in self._index.rank(query, self.top_k)]
        return "\n\n".join(f"[{title}] {self._cut(text)}" for title, text in found) or "Nothing was found."

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.max_chars else f"{text[: self.max_chars]}…"
