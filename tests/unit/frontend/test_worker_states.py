"""The states of a worker are the same words for the client and the frontend."""

import kvatlas_client
from kvatlas_client import WorkerState


def test_whatever_state_the_client_tells_the_frontend_knows() -> None:
    told = {state.value for state in kvatlas_client.WorkerState}
    assert told == {state.value for state in WorkerState}
