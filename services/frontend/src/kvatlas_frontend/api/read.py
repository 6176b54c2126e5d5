"""Reads a request of any route: which facts of it routing gets."""

from kvatlas_frontend.api.body import ParsedBody, parse_body
from kvatlas_frontend.api.passed import parse_passed, passed_to
from kvatlas_frontend.api.routes import Kind, Route
from kvatlas_native import Exchange


def read_request(route: Route, exchange: Exchange) -> ParsedBody:
    """The facts about a request that routing needs.

    Raises:
        RefusedError: 400; the body cannot be read.
    """
    match route.kind:
        case Kind.COMPLETIONS:
            return parse_body("completions", exchange.body)
        case Kind.CHAT:
            return parse_body("chat", exchange.body)
        case Kind.PASSED:
            return parse_passed(exchange.header("content-type") or "", exchange.body)
        case _:
            return passed_to(None)
