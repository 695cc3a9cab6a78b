"""The shell of every page: escaping, the policy that forbids loading, tables and figures."""

import base64
import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.page.shell import (
    Cell,
    Figure,
    Html,
    Section,
    Swatch,
    Table,
    absent,
    asset,
    count,
    element,
    facing,
    figure,
    number,
    page,
    seconds,
    share,
    table,
)
from tests.analysis.test_report_html import checked

SMALL = page("T < t", [Section("a", "A & a", [element("p", "x")]), Section("b", "B", [])])


@pytest.mark.parametrize(
    ("made", "markup"),
    [
        (element("p", "a < b & 'c'"), "<p>a &lt; b &amp; &#x27;c&#x27;</p>"),
        (element("p", element("b", "x"), "<i>", None), "<p><b>x</b>&lt;i&gt;</p>"),
        (element("p", class_='"><script>', data_v=0.1 + 0.2), '<p class="&quot;&gt;&lt;script&gt;" data-v="0.3"></p>'),
        (element("p", hidden=True, title=None, tabindex=False), '<p hidden=""></p>'),
        (element("meta", name="n"), '<meta name="n">'),
        (element("p", "a\x00b\x1bc\ud800d\te\n"), "<p>a\ufffdb\ufffdc\ufffdd\te\n</p>"),
        (element("p", f"{element('b', 'x')}"), "<p>&lt;b&gt;x&lt;/b&gt;</p>"),  # no longer known to be markup
    ],
)
def test_element(made: Html, markup: str) -> None:
    assert made == markup


@given(st.text(), st.text())
def test_text_never_becomes_markup(content: str, attribute: str) -> None:
    made = element("p", content, title=attribute)
    assert made.count("<") == made.count(">") == 2
    assert made.count('"') == 2


def test_a_page_is_whole_and_its_contents_lead_to_its_sections() -> None:
    outline = checked(SMALL)
    assert [link["href"] for link in outline.named("a")] == ["#main", "#a", "#b"]
    assert [each["id"] for each in outline.named("section")] == ["a", "b"]
    assert outline.text.count("T < t") == 2
    assert outline.elements[0] == ("html", {"lang": "en"})


def test_the_policy_of_a_page_lets_only_its_own_script_run() -> None:
    script = re.findall(r"<script>(.*?)</script>", SMALL, re.DOTALL)
    assert script == [asset("page.js")]
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = checked(SMALL).named("meta")[1]["content"]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_script_and_style_cannot_end_their_element_or_load_anything(name: str) -> None:
    text = asset(name)
    assert "</" not in text
    assert "<!--" not in text
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", text)
    assert re.findall(r"https?://[^\"']*", text) in ([], ["http://www.w3.org/2000/svg"])


def test_colours_that_are_named_exist() -> None:
    style = asset("page.css")
    used = set(re.findall(r"var\(--(\w+)[,)]", style)) - {"c", "v", "rows"}
    assert used == set(re.findall(r"--(\w+): light-dark\(", style))


CELLS: list[tuple[Cell, str]] = [
    ("a<b", "<td>a&lt;b</td>"),
    (count(1234), '<td class="n" data-v="1234">1,234</td>'),
    (count(None), '<td class="n" data-v="">–</td>'),
    (seconds(0.0123), '<td class="n" data-v="0.0123">12.3 ms</td>'),
    (seconds(None), '<td class="n" data-v="">–</td>'),
    (number(2.5), '<td class="n" data-v="2.5">2.50</td>'),
    (share(0.12345), '<td class="n" data-v="0.12345">12.35%</td>'),
    (element("b", "x"), "<td><b>x</b></td>"),
    ("long " * 9, f'<td class="long">{"long " * 9}</td>'),
]


@pytest.mark.parametrize(("cell", "markup"), CELLS)
def test_cell(cell: Cell, markup: str) -> None:
    assert markup in table(Table(["h"], [[cell]]), "label")


def test_only_tables_of_several_rows_can_be_sorted() -> None:
    two, one = Table(["h"], [["a"], ["b"]]), Table(["h"], [["a"]])
    assert '<table class="sortable">' in table(two, "label")
    assert '<table class="sortable">' not in table(one, "label")
    assert '<table class="sortable">' not in table(Table(["h"], two.rows, sortable=False), "label")
    assert 'role="region" aria-label="label"' in table(one, "label")


def test_a_row_of_another_length_than_its_headings_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        table(Table(["a", "b"], [[count(1)]]), "label")


def test_figure() -> None:
    drawing = element("svg", role="img", aria_label="d")
    made = figure(Figure("Why?", "Because.", drawing, Table(["h"], [["a"]]), [Swatch("s", "prefill")], "note"))
    assert made.startswith('<figure tabindex="0" aria-label="Why?"><figcaption><b>Why?</b> Because.</figcaption>')
    assert '<li><i class="fill c-prefill"></i>s</li>' in made
    assert '<p class="note">note</p>' in made
    assert "<details><summary>Data</summary>" in made


def test_absent() -> None:
    assert absent("Why?", "no data") == '<p class="absent"><b>Why?</b> Not drawn: no data.</p>'


def test_columns_that_face_each_other_have_the_same_number_of_rows() -> None:
    a, b, c = (element("p", each) for each in "abc")
    made = facing([a], [b, c])
    assert made == f'<div class="columns facing" style="--rows: 2">{a}<div></div>{b}{c}</div>'
