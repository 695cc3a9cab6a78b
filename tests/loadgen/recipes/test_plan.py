"""The least number of GPUs that a plan needs: by hand for round numbers."""

import pytest

from loadgen.errors import UsageError
from loadgen.recipes.plan import gpus

ASKED = {"gpu": "h100", "model": "llama-3.1-8b", "tp": 1}


def outline(**totals):
    known = {"requests": 1000, "prompt_tokens": 4_000_000, "fresh_prompt_tokens": 400_000, "output_tokens": 10_000}
    return {"duration_s": 10.0, "totals": known | {"held_token_steps": 40_000_000} | totals}


def test_prefill_decides_where_prompts_are_long():
    found = gpus(outline(), ASKED)
    # 100 prompts of 4,000 tokens a second, 126 ms of arithmetic each: 12.6 GPUs; with a tenth to compute about 1.3.
    assert (found["nothing_cached"]["gpus"], found["nothing_cached"]["decides"]) == (13, "prefill")
    assert found["all_shared_cached"]["gpus"] == 2
    assert found["shared_prompt_share"] == 0.9
    assert 0.9 < found["nothing_cached"]["busy"] <= 1


def test_decode_decides_where_answers_are_long():
    found = gpus(outline(prompt_tokens=50_000, output_tokens=10_000_000, held_token_steps=10**10), ASKED)
    assert found["nothing_cached"]["decides"] in ("decode", "kv_memory")
    assert found["nothing_cached"]["gpus"] > 50


def test_a_closed_loop_has_no_rate():
    assert gpus({"duration_s": None, "totals": None}, ASKED) is None


@pytest.mark.parametrize("change", [{"gpu": "abacus"}, {"model": "none"}, {"model": "llama-3.1-405b"}])
def test_what_cannot_be_is_one_line(change):
    with pytest.raises(UsageError) as problem:
        gpus(outline(), ASKED | change)
    assert "\n" not in str(problem.value)
