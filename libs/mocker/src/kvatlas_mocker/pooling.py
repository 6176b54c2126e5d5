"""Embeddings, scores, ranks and classes: made up, but equal for equal texts, and in vLLM's forms.

These requests touch neither the scheduler nor the cache. A vector is a pseudorandom unit vector,
seeded by the text's tokens. A score is the share of tokens that two texts have in common, so a
document that repeats its query ranks first.
"""

import base64
import math
import random
import secrets
import time
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from aiohttp import web

from kvatlas_mocker.bodies import ApiError, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.tokenizer import TOKEN_MAX

_DIMENSIONS = 64
_CLASSES = ("LABEL_0", "LABEL_1", "LABEL_2")


class InputBody(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`, `/pooling` and `/classify`."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None


class ScoreBody(msgspec.Struct, kw_only=True):
    """`POST /v1/score`: one text or as many as in `text_2`, against one or several."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None


class RerankBody(msgspec.Struct, kw_only=True):
    """`POST /v1/rerank`."""

    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: int = 0


class PoolingPages:
    """The handlers of these routes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register all routes."""
        router.add_post("/v1/embeddings", self.embeddings)
        router.add_post("/pooling", self.pooling)
        router.add_post("/classify", self.classify)
        for path in ("/score", "/v1/score"):
            router.add_post(path, self.score)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            router.add_post(path, self.rerank)
        for task in ("transcriptions", "translations"):
            router.add_post(f"/v1/audio/{task}", self.transcribe)

    async def embeddings(self, http: web.Request) -> web.Response:
        """One unit vector for each input, as numbers or as base64 of little-endian float32."""
        body = parse(await http.read(), InputBody)
        if body.encoding_format not in ("float", "base64"):
            raise ApiError("encoding_format must be float or base64", param="encoding_format")
        dimensions = _DIMENSIONS if body.dimensions is None else body.dimensions
        if not 0 < dimensions <= _DIMENSIONS:
            raise ApiError(f"dimensions must be 1 to {_DIMENSIONS}", param="dimensions")
        texts = await self._inputs(body)
        vectors = [_vector(text, dimensions) for text in texts]
        is_text = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if is_text else vector,
            }
            for index, vector in enumerate(vectors)
        ]
        return self._answer("embd", body.model, texts, {"object": "list", "data": data})

    async def pooling(self, http: web.Request) -> web.Response:
        """As embeddings, under the names of `/pooling`."""
        body = parse(await http.read(), InputBody)
        texts = await self._inputs(body)
        data = [
            {"object": "pooling", "index": index, "data": _vector(text, _DIMENSIONS)}
            for index, text in enumerate(texts)
        ]
        return self._answer("pool", body.model, texts, {"object": "list", "data": data})

    async def classify(self, http: web.Request) -> web.Response:
        """A probability for each of three classes."""
        body = parse(await http.read(), InputBody)
        texts = await self._inputs(body)
        data: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            weights = [abs(part) for part in _vector(text, len(_CLASSES))]
            probabilities = [weight / sum(weights) for weight in weights]
            best = max(range(len(_CLASSES)), key=probabilities.__getitem__)
            data.append(
                {
                    "index": index,
                    "label": _CLASSES[best],
                    "probs": probabilities,
                    "num_classes": len(_CLASSES),
                }
            )
        return self._answer("classify", body.model, texts, {"object": "list", "data": data})

    async def score(self, http: web.Request) -> web.Response:
        """The score of each pair."""
        body = parse(await http.read(), ScoreBody)
        left = [body.text_1] if isinstance(body.text_1, str) else body.text_1
        right = [body.text_2] if isinstance(body.text_2, str) else body.text_2
        if not left or not right:
            raise ApiError("At least one text element must be given")
        if len(left) == 1:
            left = left * len(right)
        if len(left) != len(right):
            raise ApiError("Input lengths must be either 1:1, 1:N or N:N")
        one = [await self._tokens(text) for text in left]
        two = [await self._tokens(text) for text in right]
        data = [
            {"index": index, "object": "score", "score": _likeness(*pair)}
            for index, pair in enumerate(zip(one, two, strict=True))
        ]
        return self._answer("score", body.model, one + two, {"object": "list", "data": data})

    async def rerank(self, http: web.Request) -> web.Response:
        """The documents, the best first."""
        body = parse(await http.read(), RerankBody)
        texts = [
            each if isinstance(each, str) else str(each.get("text")) for each in body.documents
        ]
        if not texts:
            raise ApiError("documents must not be empty", param="documents")
        query = await self._tokens(body.query)
        documents = [await self._tokens(text) for text in texts]
        scores = [_likeness(query, tokens) for tokens in documents]
        best = sorted(range(len(texts)), key=lambda index: -scores[index])
        results = [
            {
                "index": index,
                "document": {"text": texts[index], "multi_modal": None},
                "relevance_score": scores[index],
            }
            for index in (best[: body.top_n] if body.top_n > 0 else best)
        ]
        return self._answer("rerank", body.model, [query, *documents], {"results": results})

    async def transcribe(self, http: web.Request) -> web.Response:
        """Words that depend on the file's bytes."""
        form = await http.post()
        file, model = form.get("file"), form.get("model")
        self._engine.find(model if isinstance(model, str) else None)
        if not isinstance(file, web.FileField):
            raise ApiError("a file is needed", param="file")
        seed = zlib.crc32(file.file.read())
        text = " ".join(random.Random(seed).choices(("one", "two", "three", "four"), k=8))
        if form.get("response_format") == "text":
            return web.Response(text=text)
        document = {"text": text, "usage": {"type": "duration", "seconds": 1}}
        return web.Response(
            body=msgspec.json.encode(document), content_type="application/json"
        )  # fmt: skip

    async def _inputs(self, body: InputBody) -> list["array[int]"]:
        given = body.input
        if isinstance(given, str):
            return [await self._tokens(given)]
        if not given:
            raise ApiError("input must not be empty", param="input")
        if all(isinstance(each, int) for each in given):
            return [_ids(given)]
        found: list[array[int]] = []
        for each in given:
            if isinstance(each, str):
                found.append(await self._tokens(each))
            elif isinstance(each, list) and each:
                found.append(_ids(cast("list[Any]", each)))
            else:
                raise ApiError("input: texts or lists of token ids are needed", param="input")
        return found

    async def _tokens(self, text: str) -> "array[int]":
        return await self._engine.tokenizer.encode(text, add_special_tokens=True)

    def _answer(
        self,
        prefix: str,
        model: str | None,
        texts: Sequence["array[int]"],
        document: dict[str, Any],
    ) -> web.Response:
        served = self._engine.find(model)
        tokens = sum(len(text) for text in texts)
        whole = {
            "id": f"{prefix}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            **document,
        }
        return web.Response(body=msgspec.json.encode(whole), content_type="application/json")


def _ids(given: Sequence[Any]) -> "array[int]":
    try:
        return array("I", given)
    except (TypeError, OverflowError):
        raise ApiError(
            f"Token id is out of vocabulary [0, {TOKEN_MAX}]", param="input"
        ) from None  # fmt: skip


def _vector(tokens: "array[int]", dimensions: int) -> list[float]:
    """The begin of the text's vector, of length 1."""
    source = random.Random(zlib.crc32(tokens))
    parts = [source.gauss(0.0, 1.0) for _ in range(_DIMENSIONS)][:dimensions]
    length = math.sqrt(sum(part * part for part in parts))
    return [part / length for part in parts]


def _base64(vector: list[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()


def _likeness(left: "array[int]", right: "array[int]") -> float:
    one, two = set(left), set(right)
    return len(one & two) / max(1, len(one | two))
