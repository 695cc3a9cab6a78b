import argparse

import pytest

from loadgen.errors import UsageError
from loadgen.sim.options import Options
from loadgen.sim.server import serve

CHANGED = Options(
    gpu="h200", model="qwen2.5-7b", replicas=3, router="prefix-affinity", policy="prefill-first", chunk_tokens=0,
    long_prefill_threshold=512, max_num_seqs=7, kv_tokens=4096, prefix_cache=False, speculative="4:0.7", speed=2.5,
    stop_early_tokens=99, auto_tool_calls=2, thinking_field="reasoning", inject=("pause", "reset:share=1%"),
    truth="t.jsonl",
)  # fmt: skip


@pytest.mark.parametrize("options", [Options(), CHANGED])
def test_options_survive_the_command_line(options):
    parser = argparse.ArgumentParser()
    Options.add_flags(parser)
    assert Options.from_flags(parser.parse_args(options.argv())) == options


def test_options_become_the_cores_config():
    config = CHANGED.config()
    replica = config.replica
    assert (config.replicas, config.router, config.prefill_replicas) == (3, "prefix_affinity", 0)
    assert (replica.policy, replica.prefix_cache, replica.speed) == ("prefill_first", False, 2.5)
    assert (replica.long_prefill_tokens, replica.max_num_seqs, replica.kv_tokens) == (512, 7, 4096)
    assert (replica.draft_tokens, replica.acceptance) == (4, 0.7)


@pytest.mark.parametrize(
    ("options", "replicas", "prefill"),
    [
        (Options(policy="disaggregated"), 1, 1),
        (Options(policy="disaggregated", prefill_replicas=2, decode_replicas=3), 3, 2),
    ],
)
def test_disaggregated_replicas(options, replicas, prefill):
    config = options.config()
    assert (config.replicas, config.prefill_replicas) == (replicas, prefill)


def test_tensor_parallelism_and_formats_reach_the_roofline():
    roofline = Options(tp=2, dtype="fp8", kv_dtype="fp8").config().replica.roofline
    assert (roofline.tp, roofline.model.dtype_bytes, roofline.model.kv_dtype_bytes) == (2, 1, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(), "one simulated h100"),
        (Options(tp=2), "2 simulated h100"),
        (Options(replicas=3, tp=2), "3 replicas of 2 simulated h100 each"),
        (Options(policy="disaggregated", decode_replicas=2), "3 replicas of one simulated h100 each"),
    ],
)
def test_hardware_in_words(options, text):
    assert options.hardware() == text


def test_behaviour():
    behaviour = CHANGED.behaviour()
    assert (behaviour.limits.stop_early_tokens, behaviour.limits.auto_tool_calls) == (99, 2)
    assert [fault.kind for fault in behaviour.faults] == ["pause", "reset"]


@pytest.mark.parametrize(
    ("options", "port", "message"),
    [
        (Options(gpu="nope"), 0, "unknown gpu 'nope'"),
        (Options(gpu="l4", model="qwen2.5-32b"), 0, "does not fit on one l4"),
        (Options(speed=0), 0, "speed above 0"),
        (Options(speed=float("nan")), 0, "speed above 0"),
        (Options(replicas=100_000_000), 0, "at most 1,000 replicas"),
        (Options(policy="best"), 0, "unknown policy 'best': choose one of chunked, prefill-first"),
        (Options(router="best"), 0, "unknown router 'best'"),
        (Options(dtype="fp1"), 0, "unknown dtype 'fp1': choose one of bf16"),
        (Options(thinking_field="thoughts"), 0, "unknown thinking-field"),
        (Options(prefill_replicas=2), 0, "need --policy disaggregated"),
        (Options(speculative="4"), 0, "--speculative '4': write DRAFT:ACCEPTANCE"),
        (Options(speculative="4:x"), 0, "--speculative '4:x'"),
        (Options(speculative="0:0.5"), 0, "--speculative '0:0.5'"),
        (Options(inject=("boom",)), 0, "unknown fault 'boom'"),
        (Options(truth="/nowhere/truth.jsonl"), 0, "--truth /nowhere/truth.jsonl: No such file or directory"),
        (Options(), 70_000, "cannot listen on 127.0.0.1:70000"),
    ],
)
def test_what_cannot_be_served_is_one_line(options, port, message):
    with pytest.raises(UsageError, match=f"^.*{message}[^\n]*$"):
        serve(options, "127.0.0.1", port, lambda where: pytest.fail(f"serves at {where}"))
