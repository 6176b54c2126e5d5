"""The part of routing's preparation that the data plane does: read prompts, ask for matches.

The routing profile decides how much: what its built-in plugins `tokens`, `chunk-hashes` and `matches`
would do. For a profile without them the data plane reads the fields alone.
"""

import logging
from collections.abc import Callable
from typing import Final, Literal

from kvatlas_client import Matches
from kvatlas_frontend.guarded_finder import GuardedFinder
from kvatlas_frontend.routing.check import CheckedProfile
from kvatlas_frontend.routing.interfaces import NoIndexerError
from kvatlas_frontend.routing.plugin import Kind
from kvatlas_frontend.routing.plugins.preparers import (
    ChunkHashesPlugin,
    MatchesParams,
    MatchesPlugin,
    TokensPlugin,
)
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_frontend.tokens.chat_template import ChatTemplate
from kvatlas_frontend.tokens.encoder import Encoder, FastEncoder
from kvatlas_frontend.tokens.native_template import native_renderer
from kvatlas_native import Finder, FindMatchesError, PromptReader

log = logging.getLogger(__name__)

Wanted = Literal["fields", "tokens", "hashes"]
Renders = Literal["native", "python", "engine"]


class PlaneWork:
    """How the data plane of one frontend prepares requests."""

    def __init__(
        self,
        reader: PromptReader | None,
        guarded: GuardedFinder,
        *,
        matches_limit: int | None,
        renders: Renders,
    ) -> None:
        self.reader: Final = reader  # None: Python reads all prompts
        self.renders: Final = renders  # by whom conversations are rendered
        self.matches_limit: Final = matches_limit or 0
        native = guarded.native if reader is not None and matches_limit is not None else None
        self.finder: Final[Finder | None] = None if native is None else native.native
        self._guarded = guarded
        self._adapters: dict[str, str] = {}  # those that the reader knows

    @classmethod
    def of(
        cls,
        settings: FrontendSettings,
        profile: CheckedProfile,
        encoder: Encoder | None,
        template: ChatTemplate | None,
        *,
        finder: GuardedFinder,
    ) -> "PlaneWork":
        """The work that a profile leaves to the data plane."""
        wanted = wanted_by(profile)
        fast = encoder if settings.native_prompts and isinstance(encoder, FastEncoder) else None
        renderer = None
        if fast is not None and template is not None and wanted != "fields":
            renderer = native_renderer(template)
        reader = None
        if settings.native_prompts:
            reader = PromptReader(
                encoder=None if fast is None else fast.native,
                template=renderer,
                block_size=settings.block_size,
                wanted=wanted,
                threads=settings.tokenize_threads,
                cache_bytes_max=settings.conversation_cache_bytes_max,
                tenant_header=settings.tenant_header or None,
            )
            if reader.no_cache_because is not None:
                log.warning(
                    "conversations are not cached for this tokenizer: %s", reader.no_cache_because
                )
        python = "python" if template is not None else "engine"
        return cls(
            reader,
            finder,
            matches_limit=limit_of(profile),
            renders="native" if renderer is not None else python,
        )

    def steer(self, set_asking: Callable[[bool], None]) -> None:
        """Let the circuit breaker of the indexers switch the data plane's asking."""
        self._guarded.steer(set_asking)

    def report(self, outcome: Matches | FindMatchesError) -> Matches | NoIndexerError:
        """Count an answer of the indexers, or why there is none."""
        return self._guarded.report(outcome)

    def know_adapters(self, adapters: dict[str, str]) -> None:
        """Tell the reader the adapters by model, if they have changed."""
        if self.reader is not None and self._adapters is not adapters:
            self._adapters = adapters
            self.reader.set_adapters(adapters)


def wanted_by(profile: CheckedProfile) -> Wanted:
    """The part of a prompt that the built-in plugins of a profile need."""
    builders = {step.spec.build for step in profile.steps[Kind.PREPARE]}
    if ChunkHashesPlugin in builders:
        return "hashes"
    return "tokens" if TokensPlugin in builders else "fields"


def limit_of(profile: CheckedProfile) -> int | None:
    """The `limit` of the built-in plugin `matches`; None: the profile does not have it."""
    for step in profile.steps[Kind.PREPARE]:
        if step.spec.build is MatchesPlugin and isinstance(step.params, MatchesParams):
            return step.params.limit
    return None
