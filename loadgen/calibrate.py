"""What must be known of an endpoint before the load starts: does it answer, which model, how long is our text for it.

Every request here carries the header `x-loadgen-probe`, so that a server's log can tell it from the load; none of them
is in any number.
"""

import random

import httpx

from loadgen.access import Access
from loadgen.error_text import error_message
from loadgen.errors import UsageError
from loadgen.openai_api import BodyOptions, request_body
from workloads.prompts import Calibration, Prompter
from workloads.request import Message, Passage, Request

SHORT_WORDS, LONG_WORDS = 100, 600


async def find_model(access: Access) -> str:
    """The name of the one model that the server lists.

    Raises:
        NoVerdictError: the server cannot be reached.
        UsageError: it lists none, or several.
    """
    async with access.client() as client:
        names = await list_models(client, access)
    if names is None:
        raise UsageError(f"{access.target.origin} lists no models; name one with --model")
    if len(names) == 1:
        return names[0]
    listed = ", ".join(names[:10]) or "none"
    raise UsageError(f"{access.target.origin} lists {len(names)} models ({listed}); choose one with --model")


async def list_models(client: httpx.AsyncClient, access: Access) -> list[str] | None:
    """The names that the server lists; None where it has no such list. Raises NoVerdictError."""
    async with access.ask(client, "GET", f"{access.target.base}/models") as reply:
        await reply.aread()
    try:
        return [str(model["id"]) for model in reply.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return None


async def calibrate(access: Access, options: BodyOptions) -> tuple[Calibration, str | None]:
    """How many tokens our words and the model's template come to, by the server's own count.

    Three one-token requests are enough: two texts of different length give the tokens per word and the template's
    share, and a third in two messages gives what each further message adds. Where the server does not state usage the
    defaults are taken, and the second value says so.

    Raises:
        NoVerdictError: the server cannot be reached.
    """
    prompter = Prompter(seed=random.getrandbits(48))
    short_text, long_text = (prompter.text(Passage("user", (n,), n)) for n in (SHORT_WORDS, LONG_WORDS))
    prompts = [(short_text,), (long_text,), (short_text, long_text)]
    counts = []
    async with access.client() as client:
        for texts in prompts:
            count, problem = await _prompt_tokens(client, access, options, texts)
            if count is None:
                return Calibration(), f"prompt lengths are not calibrated: {problem}"
            counts.append(count)
    short, long, both = counts
    per_word = (long - short) / (LONG_WORDS - SHORT_WORDS)
    if per_word <= 0:
        return Calibration(), "prompt lengths are not calibrated: the server's count does not grow with the prompt"
    overhead = short - per_word * SHORT_WORDS
    per_message = both - per_word * (SHORT_WORDS + LONG_WORDS) - overhead
    return Calibration(per_word, overhead, max(0.0, per_message)), None


async def _prompt_tokens(
    client: httpx.AsyncClient, access: Access, options: BodyOptions, texts: tuple[str, ...]
) -> tuple[int | None, str]:
    """The server's count of a prompt, or why there is none."""
    roles = ["user"] if len(texts) == 1 else ["system", "user"]
    messages = tuple(Message(role, text) for role, text in zip(roles, texts, strict=True))
    body = request_body(Request("probe", messages, 0, 1), options)
    body = {**body, "stream": False}
    body.pop("stream_options", None)
    async with access.ask(client, "POST", access.target.path, body) as answer:
        await answer.aread()
    if not answer.is_success:
        return None, f"HTTP {answer.status_code}: {error_message(answer.content) or answer.reason_phrase}"
    try:
        usage = answer.json()["usage"]
        return int(usage.get("prompt_tokens", usage.get("input_tokens"))), ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "the server states no usage"
