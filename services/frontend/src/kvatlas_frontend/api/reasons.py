"""The closed sets of words used in headers, error codes and metric labels."""

from enum import Enum


class Refusal(Enum):
    """Why a request was refused before any engine was asked."""

    NOT_JSON = "not_json"
    BAD_FIELD = "bad_field"
    NO_PROMPT = "no_prompt"
    UNKNOWN_MODEL = "model_not_found"
    TOO_LARGE = "request_too_large"
    UNKNOWN_ROUTE = "unknown_url"
    BAD_METHOD = "method_not_allowed"
    NO_WORKER = "no_worker_available"


class Reason(Enum):
    """`x-kvatlas-reason`: why this worker was chosen. A `fallback` reason follows a failure."""

    KV_MATCH = "kv-match"  # the worker holds part of the prompt
    LOAD_OUTWEIGHS = "load-outweighs"  # others hold part of it, but their load costs more
    NO_MATCH = "no-match"  # no worker holds any of it
    LEAST_LOADED = "least-loaded"  # the policy uses load alone
    ROUND_ROBIN = "round-robin"  # the policy takes turns
    NO_INDEXER = "fallback-no-indexer"  # no indexer answered within the deadline
    NO_TOKENS = "fallback-no-tokens"  # the prompt could not be tokenized
    NO_PROMPT = "no-prompt"  # the request has no prompt that could be matched
    RETRY = "retry"  # an earlier worker failed before its first byte

    @property
    def is_fallback(self) -> bool:
        """Whether load alone decided because the indexers or the tokenizer failed."""
        return self in (Reason.NO_INDEXER, Reason.NO_TOKENS)
