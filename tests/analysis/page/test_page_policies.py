"""The page of policies side by side."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from analysis.page.policies import render
from tests.analysis.test_report_html import EVIL, checked

DURATIONS = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s", "gap_max_s")
OTHERS = ("stalls", "stalls_per_1k", "stalled_s", "goodput_rps", "attainment", "output_tokens_per_s", "cached_share",
          "preemptions")  # fmt: skip


def policy(name: str, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "policy": name, "hardware": "2 replicas of one simulated h100 each", "verdict": "pass",
        "ttft_p50_s": 0.01, "ttft_p95_s": 0.1, "ttft_p99_s": 0.2, "itl_p50_s": 0.007, "itl_p99_s": 0.05,
        "gap_max_s": 0.5, "stalls": 3, "stalls_per_1k": 0.02, "stalled_s": 1.5, "goodput_rps": 9.0, "attainment": 0.9,
        "output_tokens_per_s": 2000.0, "cached_share": 0.4, "preemptions": 0,
    }  # fmt: skip
    return told | more


def document(*policies: dict[str, Any]) -> dict[str, Any]:
    return {"workload": "mixed", "seed": 7, "policies": list(policies)}


def test_every_number_of_every_policy() -> None:
    page = checked(render(document(policy("chunked:512"), policy("static", verdict=None, stalled_s=0.0))))
    assert "mixed under 2 policies" in page.text
    numbers = page.text.split("All numbers")[-1]
    assert "chunked:512 10.0 ms 100 ms 200 ms 7.00 ms 50.0 ms 500 ms 9.00 90% 2,000 1.50 s 3 0.02 40% 0 pass" in numbers
    assert "static 10.0 ms 100 ms 200 ms 7.00 ms 50.0 ms 500 ms 9.00 90% 2,000 0 3 0.02 40% 0 not asked" in numbers


def test_each_figure_has_a_row_a_policy() -> None:
    drawn = re.findall(r'<figure tabindex="0" aria-label="([^"]+)">(.*?)</figure>',
                       render(document(policy("a"), policy("b"))), re.DOTALL)  # fmt: skip
    assert len(drawn) == 4
    for _, content in drawn:
        assert content.count("<circle") == 2
    assert 'data-name="a: 100 ms"' in drawn[0][1]
    assert 'data-name="b: 50.0 ms"' in drawn[1][1]


def test_a_policy_without_samples_is_left_out_of_the_drawing() -> None:
    page = checked(render(document(policy("a", **dict.fromkeys(DURATIONS)))))
    assert "What does each policy do to prefill? Not drawn: no policy gave a sample." in page.text
    assert "a – – – – – – 9.00" in page.text


def test_text_from_outside_stays_text() -> None:
    made = render(document(policy(EVIL, hardware=EVIL, verdict=EVIL)) | {"workload": EVIL})
    checked(made)
    assert made.count("</script>") == 1


AMOUNTS = st.none() | st.just(0.0) | st.floats(1e-9, 1e6)


@given(st.lists(st.fixed_dictionaries(dict.fromkeys((*DURATIONS, *OTHERS), AMOUNTS)), max_size=4))
def test_any_policies_make_a_page(rows: list[dict[str, Any]]) -> None:
    checked(render(document(*(policy("p", **each) for each in rows))))
