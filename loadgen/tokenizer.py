"""The user's own tokenizer (`--tokenizer FILE`): for servers that count neither prompts nor answers.

The file is a `tokenizer.json` as model repositories have it. Needs the extra `tokenizers`.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError
from workloads.prompts import words


class Tokenizer:
    """Raises UsageError where the extra is not installed and for files that are no tokenizer."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise UsageError("--tokenizer needs an extra: pip install 'llm-loadgen[tokenizers]'") from None
        if not path.is_file():
            raise UsageError(f"--tokenizer {path}: no such file; name the model's tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as problem:  # the library raises plain Exception
            reason = str(problem).splitlines()[0]
            raise UsageError(f"--tokenizer {path}: not a tokenizer.json ({reason})") from None

    def count(self, text: str) -> int:
        """Tokens of a text, without those that begin or end a prompt."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def word_tokens(self) -> NDArray[np.float64]:
        """Tokens of each of `words()` behind a space, in the middle of a text."""
        first = self._tokenizer.encode("the", add_special_tokens=False).ids
        pairs = self._tokenizer.encode_batch([f"the {word}" for word in words()], add_special_tokens=False)
        counts = np.array([len(pair.ids) - len(first) for pair in pairs], dtype=np.float64)
        return np.maximum(counts, 0.0)
