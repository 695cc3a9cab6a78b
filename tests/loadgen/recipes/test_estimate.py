import json
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.recipes.estimate import estimate

FLAGS = {
    "model": "llama-3.1-8b", "gpu": "h100", "prompt_tokens": 4000, "output_tokens": 500, "tp": 1, "dtype": None,
    "kv_dtype": None, "compute_efficiency": 0.55, "bandwidth_efficiency": 0.8, "price_per_hour": None, "catalog": None,
    "batch": 1, "cached_tokens": 0, "others_decoding": 0, "others_context": None, "timeline": False, "explain": False,
    "format_": "text", "output": None,
}  # fmt: skip


def printed(capsys, **flags):
    assert estimate(FLAGS | flags) == 0
    return capsys.readouterr().out


def page(capsys, **flags):
    return json.loads(printed(capsys, format_="json", **flags))


def test_text_grows_with_what_is_asked_for(capsys):
    plain, drawn, explained = (printed(capsys, **flags) for flags in ({}, {"timeline": True}, {"explain": True}))
    assert "TTFT" in plain
    assert ("One request to scale" in plain, "What it means" in plain) == (False, False)
    assert "One request to scale" in drawn
    assert "What it means" in explained


def test_json_is_one_document_of_the_numbers(capsys):
    got = page(capsys)
    assert got["ttft_s"] == pytest.approx(0.120, rel=0.05)
    assert got["model"] == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        ({"tp": 2}, ("tp",), 2),
        ({"batch": 3, "cached_tokens": 100}, ("prefill", "tokens_per_pass"), 3 * 3900),
        ({"others_decoding": 7, "others_context": 9}, ("request", "others_context_tokens"), 9),
        ({"others_decoding": 7, "batch": 2}, ("decode", "tokens_per_pass"), 9),
        ({"dtype": "fp8"}, ("assumptions", "arithmetic"), "fp8"),
        ({"dtype": "int8"}, ("assumptions", "weight_bytes_per_param"), 1),
        ({"kv_dtype": "fp8"}, ("kv", "bytes_per_token"), 65_536),
        ({"compute_efficiency": 0.4}, ("assumptions", "compute_efficiency"), 0.4),
        ({"bandwidth_efficiency": 0.7}, ("assumptions", "bandwidth_efficiency"), 0.7),
        ({"price_per_hour": 1.5}, ("cost", "usd_per_gpu_hour"), 1.5),
        ({"output_tokens": 1}, ("itl_s",), None),
    ],
)
def test_each_flag_reaches_the_estimate(capsys, flags, path, value):
    got = page(capsys, **flags)
    for key in path:
        got = got[key]
    assert got == value


def test_a_catalog_of_the_users(capsys, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("gpus: {mine: {flops: 1e15, bandwidth: 1e12, memory_bytes: 1e11}}")
    got = page(capsys, gpu="mine", catalog=file)
    assert got["ridge_flops_per_byte"] == 1000
    assert got["cost"] is None


@pytest.mark.parametrize(("ending", "begins"), [(".html", "<!doctype html>"), (".svg", "<svg ")])
def test_a_picture_is_written_beside_what_is_printed(capsys, tmp_path, ending, begins):
    file = tmp_path / f"chat{ending}"
    assert page(capsys, output=file)["gpu"] == "h100"
    assert file.read_text("utf-8").startswith(begins)


def test_a_page_goes_to_the_file_or_to_stdout(capsys, tmp_path):
    on_stdout = printed(capsys, format_="html")
    assert printed(capsys, format_="html", output=tmp_path / "chat.html") == ""
    assert on_stdout == (tmp_path / "chat.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gpu": "tpu"}, r"^unknown gpu 'tpu': choose one of "),
        ({"model": "nope"}, r"^unknown model 'nope': choose one of "),
        ({"model": "none/config.json"}, r"^none/config.json: cannot be read: No such file or directory$"),
        ({"dtype": "fp4"}, r"^--dtype fp4: expected bf16, fp8, int8, int4$"),
        ({"kv_dtype": "int8"}, r"^--kv-dtype int8: expected bf16, fp8$"),
        ({"model": "llama-3.1-70b"}, r"^llama-3.1-70b does not fit on one h100: "),
        ({"tp": 3}, r"^tp 3: llama-3.1-8b has 32 heads"),
        ({"cached_tokens": 4000}, r"^cached_tokens 4000: "),
        ({"compute_efficiency": 55.0}, r"^compute_efficiency 55.0: "),
        ({"price_per_hour": 0.0}, r"^--price-per-hour 0: expected dollars above 0$"),
        ({"price_per_hour": float("nan")}, r"^--price-per-hour nan: "),
        ({"output": Path("chat.pdf")}, r"^--output chat.pdf: expected a name that ends in .html, .svg, .png$"),
        ({"output": Path("/nowhere/at/all.svg")}, r"^--output /nowhere/at/all.svg: No such file or directory$"),
    ],
)
def test_what_the_user_did_wrong_is_one_line(flags, message):
    with pytest.raises(UsageError, match=message) as caught:
        estimate(FLAGS | flags)
    assert "\n" not in str(caught.value)
