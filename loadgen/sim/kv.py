"""The KV cache as a number of blocks: who holds how many. Pages are interchangeable, so they need no names."""

BLOCK_TOKENS = 16


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """Blocks of `BLOCK_TOKENS` tokens, shared by all sequences."""

    __slots__ = ("_held", "free", "total")

    def __init__(self, capacity_tokens: int) -> None:
        self.total = capacity_tokens // BLOCK_TOKENS
        self.free = self.total
        self._held: dict[str, int] = {}

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def used_share(self) -> float:
        return self.used / self.total

    def grow(self, owner: str, tokens: int) -> bool:
        """Gives `owner` room for `tokens` tokens in all. False, and nothing changes, where too few blocks are free."""
        held = self._held.get(owner, 0)
        wanted = blocks_for(tokens) - held
        if wanted > self.free:
            return False
        if wanted > 0:
            self.free -= wanted
            self._held[owner] = held + wanted
        return True

    def release(self, owner: str) -> None:
        self.free += self._held.pop(owner, 0)
