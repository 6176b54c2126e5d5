"""The closed sets of words used in headers, error codes and metric labels."""

from enum import Enum


class Refusal(Enum):
    """Why a request was refused before any engine was asked."""

    NOT_JSON = "not_json"
    BAD_FIELD = "bad_field"
    NO_PROMPT = "no_prompt"
    UNKNOWN_MODEL = "model_not_found"
    TOO_LARGE = "request_too_large"
    UNKNOWN_RESPONSE = "response_not_found"
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
    RANDOM = "random"  # the policy draws
    HIGHEST_SCORE = "highest-score"  # the policy scores by shares
    SESSION = "session-affinity"  # the policy keeps sessions on their workers
    HASH = "consistent-hash"  # the policy hashes a key of the request
    NO_INDEXER = "fallback-no-indexer"  # no indexer answered within the deadline
    NO_TOKENS = "fallback-no-tokens"  # the prompt could not be tokenized
    NO_PROMPT = "no-prompt"  # the request has no prompt that could be matched
    ENGINE_PROMPT = "fallback-engine-prompt"  # only the engine knows the prompt
    HOLDER = "response-holder"  # the engine has the response that the request is about
    RETRY = "retry"  # an earlier worker failed before its first byte

    @property
    def is_fallback(self) -> bool:
        """Whether load alone decided where a prompt could have been matched."""
        return self in (Reason.NO_INDEXER, Reason.NO_TOKENS, Reason.ENGINE_PROMPT)


class Unrendered(Enum):
    """Why only the engine knows which prompt a request becomes."""

    REASONING = "reasoning"  # how reasoning is rendered depends on the engine's parser
    BUILT_IN_TOOL = "built-in-tool"  # a tool that the engine describes to the model by itself
    HARMONY = "harmony"  # a model whose prompts are rendered without a template
    TOOLS = "tools"  # how these tools are rendered depends on the engine's release
    INLINE_SYSTEM = "inline-system"  # system messages between others: each engine moves them
    DIALECT = "engine-dialect"  # engines differ, and the fleet's kind is unknown or mixed
    UNKNOWN_ITEM = "unknown-item"  # an item or block that is not known here
