import pytest

from loadgen.access import public_url
from loadgen.errors import UsageError
from loadgen.target import parse_target

CHAT = "/v1/chat/completions"
SPELLINGS = {
    "http://h:8000": ("http://h:8000", CHAT, "/v1"),
    "http://h:8000/": ("http://h:8000", CHAT, "/v1"),
    "http://h:8000/v1": ("http://h:8000", CHAT, "/v1"),
    "http://h:8000/v1/": ("http://h:8000", CHAT, "/v1"),
    "h:8000": ("http://h:8000", CHAT, "/v1"),
    "h": ("http://h", CHAT, "/v1"),
    "https://h": ("https://h", CHAT, "/v1"),
    "https://h:443": ("https://h", CHAT, "/v1"),
    "http://h:443": ("http://h:443", CHAT, "/v1"),
    "https://h/openai/v1": ("https://h", "/openai/v1/chat/completions", "/openai/v1"),
    "https://h/openai": ("https://h", "/openai/v1/chat/completions", "/openai/v1"),
    "http://h/v1/chat/completions": ("http://h", CHAT, "/v1"),
    "http://h/any/chat/completions": ("http://h", "/any/chat/completions", "/any"),
    "https://h/d/D/chat/completions?api-version=V": ("https://h", "/d/D/chat/completions?api-version=V", "/d/D"),
    "http://[::1]:8000/v1": ("http://[::1]:8000", CHAT, "/v1"),
    "http://127.0.0.1:8000": ("http://127.0.0.1:8000", CHAT, "/v1"),
    "unix:///run/s.sock": ("unix:/run/s.sock", CHAT, "/v1"),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings(text: str) -> None:
    target = parse_target(text, "chat")
    assert (target.origin, target.path, target.base) == SPELLINGS[text]


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://h", "http://h:0", "http://h:99999", "unix:relative", "http://[::1"]
)
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(UsageError, match="--target"):
        parse_target(text, "chat")


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError) as problem:
        parse_target("http://user:hunter2@h", "chat")
    assert "hunter2" not in str(problem.value)


def test_other_endpoints() -> None:
    assert parse_target("h", "completions").path == "/v1/completions"
    assert parse_target("h", "responses").path == "/v1/responses"


LOOPBACK = {"localhost:1": True, "127.3.2.1:1": True, "[::1]:1": True, "unix:///s": True, "10.0.0.1": False, "h": False}


@pytest.mark.parametrize("text", LOOPBACK)
def test_loopback(text: str) -> None:
    assert parse_target(text, "chat").is_loopback is LOOPBACK[text]


def test_values_of_a_query_are_hidden_but_for_the_version() -> None:
    target = parse_target("https://h/chat/completions?api-version=V&code=SECRET", "chat")
    assert public_url(target) == "https://h/chat/completions?api-version=V&code=…"
