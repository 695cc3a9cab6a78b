import pytest

from loadgen.secrets_in_argv import without_secrets

CASES = {
    "none": (["py", "run", "rag", "--rate", "4"], ["py", "run", "rag", "--rate", "4"], {}),
    "key": (["py", "run", "--api-key", "k", "rag"], ["py", "run", "rag"], {"LOADGEN_API_KEY": "k"}),
    "key with =": (["py", "run", "--api-key=k=", "rag"], ["py", "run", "rag"], {"LOADGEN_API_KEY": "k="}),
    "headers": (
        ["py", "run", "-H", "a: 1", "--header", "b: 2", "-Hc: 3", "--header=d: 4"],
        ["py", "run"],
        {"LOADGEN_HEADERS": "a: 1\nb: 2\nc: 3\nd: 4"},
    ),
    "a flag without its value": (["py", "run", "--api-key"], ["py", "run"], {"LOADGEN_API_KEY": ""}),
}


@pytest.mark.parametrize("case", CASES)
def test_secrets_leave_the_arguments(case: str) -> None:
    given, kept, found = CASES[case]
    assert without_secrets(given) == (kept, found)
