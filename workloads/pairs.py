"""Input and output lengths that belong together: long prompts with short answers, and the other way round."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from workloads.fields import DataFile, Spec, problem
from workloads.lengths import Ints
from workloads.number_file import numbers

INPUT, OUTPUT = "input_tokens", "output_tokens"


class Pairs(Spec):
    """Pairs of input and output tokens, drawn together: `[input, output]`, or `[input, output, weight]` of weight 1.

    They stand in the workload, or in a CSV file with columns `input_tokens` and `output_tokens`, each row as likely as
    any other.
    """

    law: Literal["pairs"]
    """What these are."""
    pairs: Annotated[tuple[tuple[int | float, ...], ...], Field(min_length=1)] | None = None
    """The pairs, as in [[100, 200, 3], [4000, 50, 1]]."""
    file: DataFile | None = None
    """In place of pairs: the CSV file."""

    @field_validator("pairs", mode="before")
    @classmethod
    def _each_a_pair(cls, value: Any) -> Any:
        for i, pair in enumerate(value if isinstance(value, list | tuple) else ()):
            if not _is_pair(pair):
                raise problem("expected [input tokens, output tokens] or [input tokens, output tokens, weight]", i)
        return value

    @model_validator(mode="after")
    def _one_source(self) -> "Pairs":
        if (self.pairs is None) == (self.file is None):
            raise problem("expected pairs or a file of them, one of the two")
        try:
            self._table()
        except ValueError as error:
            raise problem(str(error), "file") from None
        return self

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        """`n` input lengths and the output lengths that go with them, whole numbers of at least 1."""
        table = self._table()
        shares = np.cumsum(table[:, 2] / table[:, 2].sum())
        rows = np.minimum(np.searchsorted(shares, rng.random(n), side="right"), len(table) - 1)
        drawn = np.maximum(1, table[rows, :2]).astype(np.int64)
        return drawn[:, 0], drawn[:, 1]

    def _table(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Rows of input, output and weight."""
        if self.pairs is not None:
            return np.array([(*pair, 1.0)[:3] for pair in self.pairs], dtype=np.float64)
        found = numbers(self.file or "", (INPUT, OUTPUT))
        return np.column_stack([found, np.ones(len(found))])


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) not in (2, 3):
        return False
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in pair):
        return False
    return all(x >= 1 and float(x).is_integer() for x in pair[:2]) and 0 < (*pair, 1)[2] < 1e300
