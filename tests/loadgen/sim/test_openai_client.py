"""OpenAI's own Python client against the simulated server: whatever it reads, other clients read too."""

from collections.abc import Iterator

import openai
import pytest

from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.loadgen.sim.openai_cases import CASES


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(Options(speed=20)) as server:
        yield server


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_openai_client_reads_what_is_said(case, server: LocalServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        case(client, server.model)
