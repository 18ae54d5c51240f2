"""When a stream's next chunk is due: how many speech tokens each token-to-wave call gets (SPEC 7.2).

The state belongs to one request, so an early first sound never depends on who was served before.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_HOP = 25
MAX_HOP = 100


@dataclass(frozen=True)
class ChunkCall:
    """One token-to-wave call: the flow model gets `token_count` tokens, the vocoder the frames from `offset` on."""

    token_count: int  # generated tokens handed over, look-ahead included, prompt excluded
    offset: int  # tokens already turned into sound
    final: bool


class ChunkSchedule:
    """Decides chunk borders for one request.

    Hops double from `first_hop` to `MAX_HOP` tokens. The first is lengthened so that prompt plus first chunk
    end on a chunk border of the causal mask, which makes every frame final once emitted (SPEC 5.4).
    """

    def __init__(self, prompt_tokens: int, lookahead: int, first_hop: int = FIRST_HOP) -> None:
        self._lookahead = lookahead
        self._hop = first_hop
        self._due = first_hop + (-prompt_tokens) % first_hop
        self._offset = 0
        self._done = False

    @property
    def hop(self) -> int:
        """Tokens of the next regular chunk."""
        return self._hop

    def tokens_needed(self) -> int:
        """Generated tokens at which the next chunk can be made."""
        return self._offset + self._due + self._lookahead

    def next_call(self, tokens_ready: int, finished: bool) -> ChunkCall | None:
        """The call that is due with `tokens_ready` tokens, or None when more are needed or all is done.

        `finished` says that the language model has ended; the last call then takes everything.
        """
        if self._done:
            return None
        if tokens_ready >= self.tokens_needed():
            call = ChunkCall(self.tokens_needed(), self._offset, final=False)
            self._advance(tokens_ready, finished)
            return call
        if not finished:
            return None
        self._done = True
        return ChunkCall(tokens_ready, self._offset, final=True)

    def _advance(self, tokens_ready: int, finished: bool) -> None:
        self._offset += self._due
        self._hop = min(MAX_HOP, 2 * self._hop)
        # The original decides whether to stop by the hop it has just used, which only matters
        # where that one was longer than the next.
        if not (finished and tokens_ready - self._offset < self._due + self._lookahead):
            self._due = self._hop
