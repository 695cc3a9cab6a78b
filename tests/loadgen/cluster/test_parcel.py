"""A share on its way: the same plan comes out at the other end, with its files and without a look at the key."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.access import make_access
from loadgen.cluster.parcel import PIECE_BYTES, Parcel, joined, pieces
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpOptions
from loadgen.share import Share
from loadgen.target import parse_target
from tests.loadgen.scripted import Certificate
from tests.loadgen.test_worker import KEY, share
from workloads.prompts import Calibration
from workloads.schedule import build
from workloads.spec import Workload, library, load_workload


def share_of(workload: Workload, **more: Any) -> Share:
    access = make_access(
        parse_target("http://127.0.0.1:9", "chat"), headers={"x-key": KEY}, api_key=KEY, ca_file=None,
        client_cert=None, insecure=False, proxy=None,
    )  # fmt: skip
    return Share(build(workload, 3), Calibration(), access, BodyOptions("m"), HttpOptions(), **more)


def travelled(whole: Share, i: int, n: int, folder: Path) -> Share:
    sent = list(enumerate(pieces(Parcel.of(whole, i, n))))
    random.Random(1).shuffle(sent)
    return joined(dict(sent)).unpacked(folder)


@pytest.mark.parametrize("name", library())
def test_every_library_workload_is_the_same_at_the_other_end(name: str, tmp_path: Path) -> None:
    whole = share_of(load_workload(name, {"duration": "20s"}), max_in_flight=9)
    parts = [travelled(whole, i, 3, tmp_path) for i in range(3)]
    assert [part.worker for part in parts] == [0, 1, 2]
    for i, part in enumerate(parts):
        direct = whole.part(i, 3)
        assert list(part.schedule.sessions()) == list(direct.schedule.sessions())
        assert part.schedule == direct.schedule
        assert part.max_in_flight == direct.max_in_flight
        assert (part.access.api_key, part.access.headers) == (KEY, {"x-key": KEY})


def test_a_closed_loop_is_divided_as_on_one_machine(tmp_path: Path) -> None:
    whole = share(concurrency=5, requests=17)
    parts = [travelled(whole, i, 2, tmp_path) for i in range(2)]
    assert [(part.schedule.concurrency, part.schedule.requests) for part in parts] == [(3, 9), (2, 8)]


def test_a_schedule_that_was_cut_anew_stays_as_it_was_cut(tmp_path: Path) -> None:
    plan = {"arrivals": {"rate": "5/s"}, "duration": "20s", "classes": {"c": {"shape": "chat"}}}
    whole = share_of(Workload.model_validate(plan))
    (stage,) = whole.schedule.stages
    halves = (replace(stage, end_ns=10**10), replace(stage, name="second", start_ns=10**10))
    cut = replace(whole, schedule=replace(whole.schedule, stages=halves, drain_ns=7))
    got = travelled(cut, 0, 2, tmp_path)
    assert (got.schedule.stages, got.schedule.drain_ns) == (halves, 7)
    assert list(got.schedule.sessions()) == list(whole.part(0, 2).schedule.sessions())


def test_another_plan_from_the_same_seed_is_refused(tmp_path: Path) -> None:
    parcel = Parcel.of(share_of(load_workload("chat", {"duration": "20s"})), 0, 2)
    with pytest.raises(ValueError, match="other times follow from the seed there"):
        replace(parcel, due_sum=parcel.due_sum ^ 1).unpacked(tmp_path)


def test_the_files_of_a_workload_travel_with_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    rows = "\n".join(f"{i / 4},{20 + i},{5 + i}" for i in range(40))
    (here / "trace.csv").write_text(f"time_s,input_tokens,output_tokens\n{rows}\n")
    (here / "lengths.txt").write_text("10\n20\n30\n")
    shape = {"shape": "chat", "output_tokens": {"law": "empirical", "file": "lengths.txt"}, "body": {"file": "theirs"}}
    plans: list[dict[str, Any]] = [
        {"trace": {"file": "trace.csv", "format": "csv"}},
        {"arrivals": {"rate": "5/s"}, "duration": "10s", "classes": {"c": shape}},
    ]
    for number, plan in enumerate(plans):
        whole = share_of(Workload.model_validate(plan, context={"folder": here}))
        expected = [list(whole.part(i, 2).schedule.sessions()) for i in range(2)]
        packed = [Parcel.of(whole, i, 2) for i in range(2)]
        assert [len(each.files) for each in packed] == [1, 1]
        folder = there / str(number)
        folder.mkdir()
        got = [joined(dict(enumerate(pieces(each)))).unpacked(folder) for each in packed]
        assert [list(each.schedule.sessions()) for each in got] == expected
        assert all(str(here) not in str(each.schedule.workload.resolved()) for each in got)
        bodies = [each.body for each in got[0].schedule.workload.classes.values()]
        assert bodies == [each.body for each in whole.schedule.workload.classes.values()]


def test_certificates_travel_and_are_trusted_there(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    asked = share(url="https://127.0.0.1:9", ca_file=str(certificate.file))
    folder = tmp_path / "there"
    folder.mkdir()
    got = travelled(asked, 1, 2, folder)
    assert got.ca_file is not None
    assert Path(got.ca_file).parent == folder
    assert got.whole().access.tls.get_ca_certs() == asked.access.tls.get_ca_certs()  # type: ignore[union-attr]


def test_no_piece_is_large_enough_for_the_object_store_and_none_shows_the_key(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("123456\n" * 50_000)
    shape = {"shape": "chat", "output_tokens": {"law": "empirical", "file": str(tmp_path / "lengths.txt")}}
    plan = {"arrivals": {"rate": "5/s"}, "duration": "10s", "classes": {"c": shape}}
    parcel = Parcel.of(share_of(Workload.model_validate(plan)), 0, 2)
    sizes = [len(piece) for piece in pieces(parcel)]
    assert len(sizes) > 5
    assert max(sizes) == PIECE_BYTES < 100 * 1024
    assert KEY not in repr(parcel)
    assert KEY not in repr(parcel.share)


def test_a_long_plan_is_as_small_as_a_short_one() -> None:
    def size(duration: str) -> int:
        plan = {"arrivals": {"rate": "100/s"}, "duration": duration, "classes": {"c": {"shape": "chat"}}}
        return sum(map(len, pieces(Parcel.of(share_of(Workload.model_validate(plan)), 0, 2))))

    assert size("1000s") < size("1s") + 100
