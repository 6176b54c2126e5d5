"""Which rank an engine's messages name."""

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_publisher.rank import Named, Rank


def test_the_first_message_names_the_rank_where_no_setting_does() -> None:
    rank = Rank("tcp://e:1", None)
    assert [rank.judge(said) for said in (None, 3, 3)] == [Named.OURS, Named.LEARNED, Named.OURS]
    assert rank.followed == 3


def test_one_message_of_another_rank_is_a_stray_however_often_it_comes() -> None:
    rank = Rank("tcp://e:1", 1)
    for _ in range(3):
        assert rank.judge(2) is Named.STRAY
        assert rank.judge(1) is Named.OURS
    assert rank.judge(2) is Named.STRAY
    rank.heard()
    assert rank.judge(2) is Named.STRAY
    assert rank.followed == 1


@pytest.mark.parametrize("between", [[], [None]])
def test_two_of_another_rank_with_none_of_ours_between_are_another_engine_s(
    between: list[int | None],
) -> None:
    rank = Rank("tcp://e:1", None)
    assert rank.judge(0) is Named.OURS
    assert rank.judge(2) is Named.STRAY
    assert all(rank.judge(said) is Named.OURS for said in between)
    with pytest.raises(
        SettingsError, match=r"tcp://e:1 speaks for dp rank 2, not 0; use --dp-rank 2"
    ):
        rank.judge(2)
