import pytest

from loadgen.sim.inject import KINDS, Fault, faults_of, help_text, parse_fault

S = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("pause", Fault("pause", every_ns=10 * S, for_ns=S)),
        ("pause:every=2m,for=250ms", Fault("pause", every_ns=120 * S, for_ns=S // 4)),
        ("freeze:after=5", Fault("freeze", after=5, for_ns=2 * S)),
        ("buffer", Fault("buffer", bytes=16384)),
        (" buffer: bytes=100 , share=5% ", Fault("buffer", 0.05, bytes=100)),
        ("burst:tokens=8,seed=3", Fault("burst", seed=3, tokens=8)),
        ("reset:share=0.25,after=0", Fault("reset", 0.25, after=0)),
        ("error", Fault("error", after=20)),
        ("reject", Fault("reject", status=429, retry_after_ns=S)),
        ("reject:status=503,retry-after=2.5s", Fault("reject", status=503, retry_after_ns=5 * S // 2)),
        ("slow-headers:for=1s", Fault("slow-headers", for_ns=S)),
    ],
)
def test_grammar(text, fault):
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown fault ''; choose one of pause"),
        ("explode", "unknown fault 'explode'; choose one of pause"),
        ("pause:after=3", "pause takes every, for, seed, share, as in pause:every=10s,for=1s"),
        ("pause:every", "pause takes"),
        ("pause:every=10", "every: '10' is not a duration"),
        ("pause:every=1s,for=1s", "every must be above for"),
        ("reset:share=2", "share: '2' is not a share"),
        ("reset:after=-1", "after: expected a whole number of at least 0"),
        ("buffer:bytes=0", "bytes: expected a whole number of at least 1"),
        ("reject:status=500", "status: expected 429 or 503"),
    ],
)
def test_mistakes_are_one_line(text, message):
    with pytest.raises(ValueError, match=f"^'{text}'.*{message}[^\n]*$"):
        parse_fault(text)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_a_share_of_the_requests_is_hit(share):
    fault = Fault("reset", share)
    hits = sum(fault.hits(f"7-{i}-1") for i in range(10_000))
    assert abs(hits - 10_000 * share) <= 4 * (10_000 * share * (1 - share)) ** 0.5


def test_the_seed_decides_which_ones():
    ids = [f"7-{i}-1" for i in range(1000)]
    hit = {seed: {i for i in ids if Fault("reset", 0.5, seed).hits(i)} for seed in (0, 0, 1)}
    assert hit[0] == {i for i in ids if Fault("reset", 0.5).hits(i)}
    assert hit[0] != hit[1]
    # Kinds are drawn apart: who is reset is not always the one who is frozen too.
    assert hit[0] != {i for i in ids if Fault("freeze", 0.5).hits(i)}


def test_of_one_kind_the_first_that_hits_counts():
    never, always, other = Fault("reset", 0.0), Fault("reset", after=1), Fault("reset", after=2)
    pause, buffer = Fault("pause"), Fault("buffer")
    assert faults_of([never, always, pause, other, buffer], "a") == {"reset": always, "buffer": buffer}


def test_a_rejection_says_when_to_come_again():
    error = Fault("reject", status=503, retry_after_ns=S + 1).refusal()
    assert (error.status, error.headers) == (503, {"retry-after": "2"})


def test_the_help_lists_every_kind_and_its_keys():
    lines = help_text().splitlines()
    assert len(lines) == len(KINDS)
    for line, (kind, (keys, _)) in zip(lines, KINDS.items(), strict=True):
        assert line.startswith(f"  {kind}:{keys}  ")
        parse_fault(f"{kind}:{keys},share=50%,seed=1")


def test_the_command_line_names_every_fault():
    from loadgen.cli import FAULTS

    assert FAULTS.split() == [f"{kind}:{keys}" for kind, (keys, _) in KINDS.items()]
