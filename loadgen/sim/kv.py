"""The KV cache in blocks: how many are free, and which prefixes the others hold.

A block is private to one sequence until it is full and computed; then, if its content has a hash, it can be shared. A
shared block that nobody uses any more stays, and is overwritten, least recently used first, when no free block is left
(Kwon et al., "PagedAttention", SOSP 2023). The shared ones form a tree whose nodes are runs of blocks (as in Zheng et
al., "SGLang", NeurIPS 2024): so a prompt costs a few steps, however long it is.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Optional

BLOCK_TOKENS = 16


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


class Node:
    """A run of shared blocks behind those of its parent.

    Attributes:
        hashes: Of its blocks; each stands for all before it as well.
        users: Sequences that use all of it.
        left: Number of the release since which nobody does.
    """

    __slots__ = ("children", "hashes", "left", "parent", "users")

    def __init__(self, parent: Optional["Node"], hashes: list[int], users: int) -> None:
        self.parent, self.hashes, self.users, self.left = parent, hashes, users, 0
        self.children: dict[int, Node] = {}

    def match(self, hashes: Sequence[int], start: int, stop: int) -> int:
        """How many of its blocks are those of `hashes` from `start` on, up to `stop` at most."""
        mine = self.hashes
        most = min(len(mine), stop - start)
        if mine[most - 1] == hashes[start + most - 1]:
            return most
        return bisect_left(range(most), True, key=lambda i: mine[i] != hashes[start + i])


class BlockPool:
    """Blocks of `BLOCK_TOKENS` tokens. A sequence holds on to the node where its shared blocks end.

    Attributes:
        free: Blocks with nothing in them.
        unused: Blocks that nobody uses, but whose content is still there.
        shared: Blocks in use that have a hash.
        root: Where prefixes begin: the node of those who share nothing.
    """

    __slots__ = ("_left", "_releases", "free", "root", "shared", "total", "unused")

    def __init__(self, capacity_tokens: int) -> None:
        self.total = capacity_tokens // BLOCK_TOKENS
        self.free = self.total
        self.unused = self.shared = 0
        self.root = Node(None, [], 1)
        self._left: deque[tuple[int, Node]] = deque()
        self._releases = 0

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return self.free + self.unused

    @property
    def used(self) -> int:
        return self.total - self.free - self.unused

    @property
    def used_share(self) -> float:
        return self.used / self.total

    def take(self, n: int) -> None:
        """Makes `n` of the available blocks private."""
        self.free -= n
        while self.free < 0:
            self._overwrite()

    def _overwrite(self) -> None:
        """Frees blocks of the run that was left first, from its end: without its beginning it would be of no use."""
        left, node = self._left[0]
        if node.users or node.left != left:
            self._left.popleft()
            return
        n = min(-self.free, len(node.hashes))
        first = node.hashes[0]
        del node.hashes[-n:]
        self.free += n
        self.unused -= n
        if not node.hashes:
            self._left.popleft()
            assert node.parent is not None, "the root is never left"
            del node.parent.children[first]

    def give_back(self, n: int) -> None:
        """Frees `n` private blocks."""
        self.free += n

    def known(self, hashes: Sequence[int], most: int) -> tuple[int, int]:
        """How many of the first `most` are here, and how many of those nobody uses."""
        node, at, unused = self.root, 0, 0
        most = min(most, len(hashes))
        while at < most and (child := node.children.get(hashes[at])) is not None:
            n = child.match(hashes, at, most)
            at += n
            unused += 0 if child.users else n
            if n < len(child.hashes):
                break
            node = child
        return at, unused

    def use(self, hashes: Sequence[int], n: int) -> Node:
        """One more user of the first `n` blocks, which are here. Returns where they end."""
        node, at = self.root, 0
        while at < n:
            node = self._enter(node.children[hashes[at]], hashes, at, n)
            at += len(node.hashes)
        return node

    def share(self, node: Node, hashes: Sequence[int], start: int, stop: int) -> Node:
        """Turns private blocks, `start` to `stop` of a sequence, into shared ones. Of two with the same content one is
        freed. `node` is where the first `start` end; returns where all do."""
        while start < stop and (child := node.children.get(hashes[start])) is not None:
            node = self._enter(child, hashes, start, stop)
            start += len(node.hashes)
            self.free += len(node.hashes)
        if start == stop:
            return node
        self.shared += stop - start
        if node.users == 1 and not node.children and node is not self.root:
            node.hashes += hashes[start:stop]
            return node
        new = node.children[hashes[start]] = Node(node, list(hashes[start:stop]), 1)
        return new

    def release(self, node: Node) -> None:
        """One user less of all blocks that end there."""
        while node.parent is not None:
            node.users -= 1
            if not node.users:
                self._releases += 1
                node.left = self._releases
                self._left.append((node.left, node))
                self.shared -= len(node.hashes)
                self.unused += len(node.hashes)
            node = node.parent
        if len(self._left) > 2 * self.total:
            self._left = deque((left, each) for left, each in self._left if not each.users and each.left == left)

    def _enter(self, node: Node, hashes: Sequence[int], start: int, stop: int) -> Node:
        """One more user of the part of a node that matches, which is parted from the rest if need be."""
        n = node.match(hashes, start, stop)
        if n < len(node.hashes):
            node = self._split(node, n)
        if not node.users:
            self.unused -= len(node.hashes)
            self.shared += len(node.hashes)
        node.users += 1
        return node

    def _split(self, node: Node, n: int) -> Node:
        """Puts the first `n` blocks of a node into one of their own before it, which is about to be used."""
        assert node.parent is not None, "the root has no blocks"
        front = Node(node.parent, node.hashes[:n], node.users)
        node.parent.children[node.hashes[0]] = front
        node.hashes = node.hashes[n:]
        node.parent = front
        front.children[node.hashes[0]] = node
        return front
