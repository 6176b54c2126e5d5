"""The table of routers: ratios to nginx, targets for kvatlas alone, rows for what is left out."""

import json
from pathlib import Path

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_frontend.tokens.chat_template import load_template
from kvatlas_loadtest.bench.frontend import figures
from kvatlas_loadtest.bench.frontend.chats import make_chats
from kvatlas_loadtest.bench.frontend.command import Flags
from kvatlas_loadtest.bench.frontend.figures import Figures, Value
from kvatlas_loadtest.flags import Parser


def test_ratios_are_to_nginx_and_targets_are_those_of_kvatlas() -> None:
    collected = Figures(short_tokens=500, long_tokens=8_000)
    collected.add("kvatlas", [Value(figures.REQUESTS_LONG, 300), Value(figures.RSS_BURST, 1)])
    for value in (9_000, 1_200, 1):
        collected.add("nginx", [Value(figures.REQUESTS_LONG, value)])
    collected.leave_out("smg", "not installed")
    collected.leave_out("nginx", "too slow", figures.BIG_BODY)
    rows = {row.figure: row for row in collected.rows()}
    mine = rows["kvatlas: requests a second, 8,000 tokens"]
    assert (mine.target, mine.met, mine.settings) == (3_000, False, {"times_nginx": 0.25})
    assert rows["nginx: requests a second, 8,000 tokens"].target is None
    assert rows["kvatlas: RSS after a burst of streams"].settings == {}
    assert rows["smg: left out"].settings == {"because": "not installed"}
    assert "nginx: delay of others by a 31 MB body, p99: left out" in rows
    assert collected.table().row_count == 2


def test_a_sessions_requests_begin_as_the_workers_blocks_do(tmp_path: Path) -> None:
    chats = make_chats(tmp_path, texts=4, short_tokens=50, long_tokens=400, events=7)
    template = load_template(tmp_path, now=lambda: pytest.fail("the template tells no time"))
    assert template is not None
    first, second = (json.loads(line) for line in chats.sessions.read_text().splitlines())
    assert len(chats.held) == 2
    assert first["messages"][:9] != second["messages"][:9]
    assert first["messages"][9] == second["messages"][9]
    prompt, whole = template.render(first["messages"], {})
    assert whole
    assert prompt.count("@" * 16) == 1
    assert json.loads(chats.streams.read_text().splitlines()[0])["max_tokens"] == 7
    assert 30_000_000 < chats.big.stat().st_size < 32 * 2**20


def test_unknown_routers_and_no_time_are_refused() -> None:
    parser = Parser()
    Flags().add(parser)
    for words in (["--routers", "kvatlas", "haproxy"], ["--seconds", "0"]):
        with pytest.raises(SettingsError, match=words[0]):
            parser.parse_args(words)
