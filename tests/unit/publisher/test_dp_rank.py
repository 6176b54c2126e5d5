"""The rank that an engine's messages name."""

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_publisher.engine.dp_rank import DpRankCheck, RankMatch


def test_the_first_message_names_the_rank_where_no_setting_does() -> None:
    rank = DpRankCheck("tcp://e:1", None)
    assert [rank.check(named) for named in (None, 3, 3)] == [
        RankMatch.SAME,
        RankMatch.LEARNED,
        RankMatch.SAME,
    ]
    assert rank.followed == 3


def test_one_message_of_another_rank_is_a_stray_however_often_it_comes() -> None:
    rank = DpRankCheck("tcp://e:1", 1)
    for _ in range(3):
        assert rank.check(2) is RankMatch.STRAY
        assert rank.check(1) is RankMatch.SAME
    assert rank.check(2) is RankMatch.STRAY
    rank.confirm()
    assert rank.check(2) is RankMatch.STRAY
    assert rank.followed == 1


@pytest.mark.parametrize("between", [[], [None]])
def test_two_of_another_rank_with_none_of_ours_between_are_another_engine_s(
    between: list[int | None],
) -> None:
    rank = DpRankCheck("tcp://e:1", None)
    assert rank.check(0) is RankMatch.SAME
    assert rank.check(2) is RankMatch.STRAY
    assert all(rank.check(named) is RankMatch.SAME for named in between)
    with pytest.raises(
        SettingsError, match=r"tcp://e:1 speaks for dp rank 2, not 0; use --dp-rank 2"
    ):
        rank.check(2)
