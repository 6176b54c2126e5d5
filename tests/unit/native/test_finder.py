"""The bindings of the finder: what they refuse, and the choice of a replica by addresses."""

import pytest

from kvatlas_native import Finder, Replicas, check_address


def test_a_failed_replica_waits_for_its_backoff() -> None:
    fleet = Replicas(["a:1", "b:1"], seed=1)
    assert {fleet.choose(5.0) for _ in range(2)} == {"a:1", "b:1"}
    fleet.failed("b:1", 5.0, "gone")
    assert {fleet.choose(5.0) for _ in range(4)} == {"a:1"}
    assert fleet.wait_s(5.0) == 0.0
    fleet.failed("a:1", 5.0, "gone")
    assert 0.05 <= fleet.wait_s(5.0) <= 0.1
    fleet.answered("b:1")
    assert fleet.choose(5.0) == "b:1"
    with pytest.raises(ValueError, match="'c:1' is none of the replicas"):
        fleet.answered("c:1")


def test_a_choice_needs_a_replica() -> None:
    with pytest.raises(ValueError, match="no address"):
        Replicas([], seed=1)
    with pytest.raises(ValueError, match="no address"):
        Finder([], model="", block_size=0, hash_contract="", seed=1)


@pytest.mark.parametrize("address", ["", "host", ":80", "http://host:80"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        check_address(address)
    with pytest.raises(ValueError, match="is not host:port"):
        Finder([address], model="", block_size=0, hash_contract="", seed=1)


def test_a_finder_tells_its_observations_in_the_order_of_configuration() -> None:
    finder = Finder(["b:1", "a:1"], model="", block_size=0, hash_contract="", seed=1)
    assert finder.replicas() == [("b:1", 0, None), ("a:1", 0, None)]
