"""Which prompts begin alike: hashes of their blocks, from the plan's passages, without a word of text."""

from collections.abc import Iterable, Sequence
from itertools import chain

from loadgen.sim.kv import BLOCK_TOKENS
from workloads.request import HEAD, Passage, Turn


def block_hashes(passages: Iterable[Passage]) -> list[int]:
    """One hash for each full block of the passages' tokens, each standing for everything up to its end.

    The same key gives the same words, whatever the length. So the blocks that a passage fills are numbered on from a
    hash of all before it, of its key, and of where in a block it begins.
    """
    hashes: list[int] = []
    before, fill = 0, 0
    for passage in passages:
        start = hash((before, fill, passage.key))
        full, fill = divmod(fill + passage.tokens, BLOCK_TOKENS)
        hashes.extend(range(start + 1, start + 1 + full))
        before = hash((start, passage.tokens))
    return hashes


def prompt_of(turn: Turn, said: Iterable[Passage]) -> list[Passage]:
    """The passages of a whole prompt, in order: what must come first, the tools, what was said before, what is new."""
    heads = (passage for passage in turn.passages if passage.role == HEAD)
    return [*heads, *turn.tools, *said, *(passage for passage in turn.passages if passage.role != HEAD)]


def answer_of(turn: Turn) -> Passage:
    """The model's own words of an answer, without what it thinks."""
    return Passage("assistant", (*turn.passages[-1].key, 1), max(1, turn.output_tokens - turn.thinking_tokens))


def said_after(said: tuple[Passage, ...], turns: Sequence[Turn]) -> tuple[Passage, ...]:
    """What a conversation holds after a round: each turn with its answer, the scripted one where there is one.

    What must come first stays there in the first round only; later it is put before one prompt and not repeated.
    """
    heads = () if said else (passage for turn in turns for passage in turn.passages if passage.role == HEAD)
    spoken = (
        (*(passage for passage in turn.passages if passage.role != HEAD), turn.scripted_answer or answer_of(turn))
        for turn in turns
    )
    return (*heads, *said, *chain.from_iterable(spoken))


def request_hashes(turn: Turn, said: tuple[Passage, ...]) -> list[int]:
    """Hashes of the blocks of a prompt as long as planned, and of those that its answer fills with it.

    An answer that was thought first, or whose place a script takes in what follows, is never asked for again.
    """
    prompt = prompt_of(turn, said)
    tokens = sum(passage.tokens for passage in prompt)
    if turn.thinking_tokens or turn.scripted_answer is not None or tokens != turn.input_tokens:
        return block_hashes(prompt)[: turn.input_tokens // BLOCK_TOKENS]
    return block_hashes([*prompt, answer_of(turn)])
