"""The duration of a step on the simulated accelerator. Pure."""

import math
from dataclasses import dataclass

from kvatlas_mocker.scheduler import Step


@dataclass(frozen=True, slots=True)
class StepCost:
    """The duration of steps, in seconds: fixed, per uncached prompt token, per decoding request.

    All of it is divided by `speedup`; with an infinite one a step takes no time.
    """

    base_s: float
    prefill_token_s: float
    decode_request_s: float
    speedup: float

    def step_s(self, step: Step) -> float:
        """Duration of `step`, seconds."""
        if math.isinf(self.speedup):
            return 0.0
        work_s = (
            self.base_s
            + self.prefill_token_s * step.prefill_tokens
            + self.decode_request_s * step.decoding
        )
        return work_s / self.speedup
