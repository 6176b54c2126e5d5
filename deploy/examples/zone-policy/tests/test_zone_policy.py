"""The policy on a fleet of three: no servers are needed."""

from pathlib import Path

from kvatlas_client import Load
from kvatlas_frontend.routing.trial import Trial, worker

POLICY = str(Path(__file__).parents[1] / "zone-first.yaml")
NEAR = {"zone": "eu-1a"}
FAR = {"zone": "eu-1b"}


async def test_my_zone_comes_first_and_then_load() -> None:
    trial = Trial(POLICY, [worker(0, labels=FAR), worker(1, labels=NEAR), worker(2, labels=NEAR)])
    trial.begin(1, tokens=1000)
    assert await trial.route() == 2
    trial.begin(2, tokens=2000)
    assert await trial.route() == 1


async def test_another_zone_helps_out_when_mine_is_saturated() -> None:
    full = Load(requests_running=9, requests_waiting=9, kv_usage=0.9)
    trial = Trial(POLICY, [worker(0, labels=FAR), worker(1, labels=NEAR, load=full)])
    assert await trial.route() == 0
