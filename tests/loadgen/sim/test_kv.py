from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.kv import BLOCK_TOKENS, BlockPool, blocks_for


def pool_of(blocks):
    return BlockPool(blocks * BLOCK_TOKENS)


def chain(branch, n):
    """Hashes of a prompt of `n` blocks: the first three are the same whatever the branch."""
    return [i if i < 3 else 100 * branch + i for i in range(n)]


def enter(pool, hashes, chunk=100):
    """A sequence takes what is there, and computes the rest in chunks. None where there is no room."""
    n = len(hashes)
    known, unused = pool.known(hashes, n)
    if n - known + unused > pool.available:
        return None
    node = pool.use(hashes, known)
    pool.take(n - known)
    while known < n:
        node = pool.share(node, hashes, known, min(known + chunk, n))
        known = min(known + chunk, n)
    return node


def test_blocks_for_tokens():
    assert [blocks_for(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_what_nobody_uses_stays_until_it_is_needed():
    pool = pool_of(10)
    node = enter(pool, chain(1, 6))
    assert (pool.used, pool.available, pool.known(chain(1, 6), 6)) == (6, 4, (6, 0))
    pool.release(node)
    assert (pool.used, pool.available, pool.known(chain(1, 6), 6)) == (0, 10, (6, 6))
    assert pool.known(chain(2, 5), 5) == (3, 3)
    enter(pool, chain(2, 5))
    assert (pool.used, pool.known(chain(1, 6), 6)) == (5, (6, 3))
    pool.take(3)  # two are free; the third is the end of the longest unused prefix
    assert pool.known(chain(1, 6), 6) == (5, 2)
    assert pool.known(chain(1, 6), 4) == (4, 1)


def test_the_least_recently_used_goes_first():
    pool = pool_of(6)
    old, new = [10, 11], [20, 21]
    for hashes in (old, new):
        pool.release(enter(pool, hashes))
    pool.take(3)
    assert (pool.known(old, 2), pool.known(new, 2)) == ((1, 1), (2, 2))
    pool.give_back(3)
    pool.release(pool.use(old, 1))
    pool.take(5)
    assert (pool.known(old, 2), pool.known(new, 2)) == ((1, 1), (0, 0))


def test_of_two_blocks_with_the_same_content_one_is_freed():
    pool = pool_of(10)
    pool.take(8)
    nodes = [pool.share(pool.root, chain(1, 4), 0, 4) for _ in range(2)]
    assert (pool.used, pool.shared, pool.free) == (4, 4, 6)
    pool.release(nodes[0])
    assert (pool.used, pool.known(chain(1, 4), 4)) == (4, (4, 0))
    pool.release(nodes[1])
    assert (pool.used, pool.known(chain(1, 4), 4)) == (0, (4, 4))


moves = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=60)


@settings(deadline=None, max_examples=200)
@given(moves)
def test_the_pool_never_gives_what_it_has_not(moves):
    """Sequences of some branch and length come, or the oldest of that branch leaves; a plain list keeps the books."""
    pool, running = pool_of(20), []
    for branch, n, chunk, leaves in moves:
        mine = [each for each in running if each[0] == branch]
        if leaves and mine:
            running.remove(mine[0])
            pool.release(mine[0][2])
        elif (node := enter(pool, chain(branch, n), chunk)) is not None:
            running.append((branch, n, node))
        users = Counter(block for branch, n, _ in running for block in chain(branch, n))
        assert pool.shared == pool.used == len(users) <= pool.total
        assert pool.used_share == pool.used / 20
        assert 0 <= pool.free <= pool.available == 20 - len(users)
        for b in range(5):
            known, unused = pool.known(chain(b, 9), 9)
            used = [block in users for block in chain(b, 9)]
            assert used[: known - unused] == [True] * (known - unused)
            assert not any(used[known - unused :])


def test_what_is_used_again_and_again_takes_no_more_memory():
    pool = pool_of(10)
    for _ in range(1000):
        pool.release(enter(pool, chain(1, 8)))
    assert len(pool._left) <= 2 * pool.total
    pool.take(10)
    assert (pool.used, pool.known(chain(1, 8), 8), pool.root.children) == (10, (0, 0), {})
