"""Turns what goes wrong with a Kafka cluster into `LogUnavailable`, in words for an operator."""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import ssl

from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.log import LogUnavailable

_CLIENT_CERTIFICATE_ALERTS = ("ALERT_CERTIFICATE", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""Parts of OpenSSL's names for the alerts of a server that wants a client certificate."""
_OTHER_NAME = (62, 64)  # OpenSSL's codes: another host's name, another IP address


def unavailable(url: KafkaUrl, error: Exception, *, answer_s: float) -> LogUnavailable:
    """Return `error` in words for the operator of the cluster or the author of its URL."""
    match error:
        case TopicAuthorizationFailedError() | ClusterAuthorizationFailedError():
            why = f"does not let us in: {error}"
        case SaslAuthenticationFailed() | AuthenticationFailedError():
            why = (
                f"does not let user {url.user} in by {url.mechanism}: {_server_text(error)}; "
                "set the user and the password of the URL to what the cluster knows"
            )
        case UnsupportedSaslMechanismError():
            why = f"does not know {url.mechanism}; set the URL's sasl_mechanism"
        case IllegalSaslStateError():
            why = "asks for no user; write the URL without USER:PASSWORD@"
        case ssl.SSLError():
            why = _tls_failure(error)
        case TimeoutError() | KafkaTimeoutError() | RequestTimedOutError():
            why = f"does not answer within {answer_s:g} s"
        case KafkaConnectionError() | NodeNotReadyError() | OSError():
            why = f"cannot be reached: {error}"
        case NotImplementedError():
            why = "is older than Kafka 3.1"
        case _:
            why = f"refuses: {error}"
    return LogUnavailable(f"{url.name} {why}")


def hangs_up(address: str, url: KafkaUrl) -> KafkaConnectionError:
    """Return that the broker at `address` closes new connections, and the likely reasons."""
    if url.tls is None:
        advice = (
            "hangs up; if its listener uses TLS, write kafka+tls://, "
            "and if it asks who we are, USER:PASSWORD@"
        )
    else:
        advice = (
            "hangs up; if it wants a certificate of ours, set ssl_certfile to one that it trusts, "
            "and if it asks who we are, write USER:PASSWORD@"
        )
    return KafkaConnectionError(f"{address} {advice}")


def _server_text(error: KafkaError) -> str:
    """Return the cluster's own text, without the library's additions."""
    return str(error.args[0]) if error.args else type(error).__name__


def _tls_failure(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error)
    reason = error.reason or "no reason is given"
    if any(each in reason for each in _CLIENT_CERTIFICATE_ALERTS):
        return (
            f"does not let us in without a certificate that it trusts: {reason}; "
            "set ssl_certfile to one"
        )
    return f"does not agree on TLS: {reason}; if its listener uses none, write kafka://"


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAME:
        return f"shows a certificate of another name: {reason}; write the name that it has"
    return f"shows a certificate that is not trusted: {reason}; set ssl_ca_certs to its authority's"
