"""What an estimate says, as rows of text that the terminal and the page share."""

from collections.abc import Iterator

from analysis.estimate.numbers import Estimate, Pass
from analysis.estimate.units import amount, count, dollars, duration, number, plain, share
from analysis.estimate.words import what_ifs


def headline(estimate: Estimate) -> str:
    return f"{replica(estimate)}: {request(estimate)}"


def replica(estimate: Estimate) -> str:
    roofline = estimate.roofline
    gpus = f"one {roofline.gpu.name}" if roofline.tp == 1 else f"{roofline.tp} x {roofline.gpu.name}"
    return f"{roofline.model.name} on {gpus}"


def request(estimate: Estimate) -> str:
    ask = estimate.ask
    many = f"{ask.batch:,} x " if ask.batch > 1 else ""
    cached = f" ({ask.cached_tokens:,} cached)" if ask.cached_tokens else ""
    others = f", beside {count(ask.others_decoding, 'other stream')}" if ask.others_decoding else ""
    prompt, answer = count(ask.prompt_tokens, "prompt token"), count(ask.output_tokens, "output token")
    return f"{many}{prompt}{cached}, {answer}{others}"


def phase_rows(estimate: Estimate) -> list[tuple[str, str, str]]:
    """A name, what holds for the prefill, what holds for one decode step."""
    prefill, decode = _column(estimate, estimate.prefill), _column(estimate, estimate.decode)
    steps = estimate.ask.decode_steps
    return [
        *((name, value, decode.get(name, "–")) for name, value in prefill.items()),
        ("passes of the request", "1", f"{steps:,}"),
        ("in all", duration(estimate.ttft_s), duration(estimate.decode_s) if steps else "–"),
    ]


def _column(estimate: Estimate, one: Pass | None) -> dict[str, str]:
    if one is None:
        return {}
    roofline, work = estimate.roofline, one.work
    ridge = roofline.ridge_flops_per_byte
    links = {"links take on top": duration(one.communication_s)} if roofline.tp > 1 else {}
    return {
        "tokens in the pass": f"{work.tokens:,}",
        "arithmetic": amount(work.flops, "FLOP"),
        "  of it attention": share(estimate.attention_share_of(work)),
        "memory traffic": amount(work.bytes, "B"),
        "FLOP per byte": number(work.flops_per_byte),
        f"  of the ridge's {number(ridge)}": f"{number(work.flops_per_byte / ridge)} x",
        "arithmetic takes": duration(one.compute_s),
        "memory takes": duration(one.memory_s),
        **links,
        "bottleneck": one.bound,
        "a pass takes": duration(one.seconds),
    }


def fact_rows(estimate: Estimate) -> Iterator[tuple[str, str, str]]:
    """A name, a value, a remark."""
    roofline, itl_s = estimate.roofline, estimate.itl_s
    yield "TTFT", duration(estimate.ttft_s), "a floor: queueing, scheduler and network come on top"
    speed = "an answer of one token has no decode" if itl_s is None else f"{number(1 / itl_s)} tokens/s a stream"
    yield "ITL", duration(itl_s), speed
    yield "E2E", duration(estimate.e2e_s), f"{share(estimate.decode_share_of_time)} of it decoding"
    per_token = amount(roofline.kv_bytes_per_token, "B")
    yield "KV cache", amount(estimate.kv_bytes, "B"), f"a request ({per_token} a token); {estimate.fitting:,} such fit"
    yield from _cost_rows(estimate)


def _cost_rows(estimate: Estimate) -> Iterator[tuple[str, str, str]]:
    cost, tp, streams = estimate.cost, estimate.roofline.tp, estimate.ask.batch + estimate.ask.others_decoding
    if cost is None:
        yield "Cost", "–", f"no price known for {estimate.roofline.gpu.name}: give --price-per-hour"
        return
    price = f"{dollars(cost.price_per_hour)} an hour" + ("" if tp == 1 else f" for each of {tp} GPUs")
    yield "Input", dollars(cost.input_usd_per_million), f"per million tokens, at {price}"
    if cost.output_usd_per_million is not None:
        full = f"; {dollars(cost.output_usd_per_million_full)} at the {estimate.fitting:,} that fit"
        more = full if cost.output_usd_per_million_full else ""
        yield "Output", dollars(cost.output_usd_per_million), f"per million at a batch of {streams:,}{more}"
    parts = f"{dollars(cost.input_usd)} for the input, {dollars(cost.output_usd)} for the output"
    yield "Request", dollars(cost.input_usd + cost.output_usd), parts


def what_if_rows(estimate: Estimate) -> list[tuple[str, str, str, str]]:
    """A change, and TTFT, ITL and E2E with it; the first row is the estimate itself."""
    cases = [("as it is", estimate), *((each.change, each.estimate) for each in what_ifs(estimate))]
    return [(name, duration(one.ttft_s), duration(one.itl_s), duration(one.e2e_s)) for name, one in cases]


def assumption_lines(estimate: Estimate) -> list[str]:
    """What the numbers rest on, a sentence each."""
    facts, roofline = estimate.assumptions, estimate.roofline
    per = "" if roofline.tp == 1 else " a GPU"
    lines = [
        f"{amount(facts['peak_flops_per_gpu'], 'FLOP/s')} ({facts['arithmetic']}) and "
        f"{amount(facts['peak_bandwidth_per_gpu'], 'B/s')}{per} at the peaks, of which "
        f"{share(facts['compute_efficiency'])} and {share(facts['bandwidth_efficiency'])} are reached",
        f"{plain(facts['weight_bytes_per_param'], 'byte')} a weight, {plain(facts['kv_bytes_per_value'], 'byte')} a "
        f"cached value; {share(facts['memory_share'])} of the memory for weights and cache",
    ]
    if roofline.tp > 1:
        link = amount(facts["link_bandwidth"], "B/s")
        lines.append(f"links of {link} a GPU one way, and {duration(facts['all_reduce_s'])} for each all-reduce")
    return [*lines, *facts["notes"]]
