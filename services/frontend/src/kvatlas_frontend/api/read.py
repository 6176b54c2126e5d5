"""Reads a request of any route: which facts of it routing gets."""

from kvatlas_frontend.api.body import ParsedBody, parse_body
from kvatlas_frontend.api.messages import parse_messages
from kvatlas_frontend.api.passed import parse_passed, passed_to
from kvatlas_frontend.api.responses import parse_responses, stored_response
from kvatlas_frontend.api.routes import Kind, Route
from kvatlas_frontend.fleet.models import ModelCatalog
from kvatlas_native import Exchange


def read_request(  # noqa: PLR0911 - one for each kind
    route: Route, name: str, exchange: Exchange, models: ModelCatalog
) -> ParsedBody:
    """The facts about a request that routing needs; `name`: the id in its path.

    Raises:
        RefusedError: 400; the body cannot be read.
    """
    match route.kind:
        case Kind.COMPLETIONS:
            return parse_body("completions", exchange.body)
        case Kind.CHAT:
            return parse_body("chat", exchange.body)
        case Kind.MESSAGES:
            return parse_messages(exchange.body, models.dialect())
        case Kind.RESPONSES:
            return parse_responses(exchange.body, models.dialect(), models.base)
        case Kind.RESPONSE:
            return stored_response(name)
        case Kind.PASSED:
            return parse_passed(exchange.header("content-type") or "", exchange.body)
        case _:
            return passed_to(None)
