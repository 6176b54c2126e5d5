"""Which headers pass."""

from multidict import CIMultiDict, CIMultiDictProxy

from kvatlas_frontend.proxy.headers import downstream_headers, upstream_headers


def proxied(**headers: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(
        CIMultiDict((name.replace("_", "-"), value) for name, value in headers.items())
    )


def test_what_speaks_of_the_clients_connection_stays_here() -> None:
    client = proxied(
        Host="kvatlas",
        Connection="close",
        Transfer_Encoding="chunked",
        Content_Length="10",
        Content_Encoding="gzip",
        Accept_Encoding="br",
        Expect="100-continue",
        TE="trailers",
        Upgrade="h2c",
        Keep_Alive="5",
        Proxy_Authorization="Basic x",
    )
    assert dict(upstream_headers(client, "2")) == {
        "X-data-parallel-rank": "2",
        "Content-Type": "application/json",
    }


def test_a_header_that_connection_names_stays_here() -> None:
    client = proxied(Connection="X-One, x-two", X_One="1", X_Two="2", X_Three="3")
    assert dict(upstream_headers(client, "0")) == {
        "X-Three": "3",
        "X-data-parallel-rank": "0",
        "Content-Type": "application/json",
    }


def test_what_speaks_to_the_engine_goes_up() -> None:
    client = proxied(Authorization="Bearer k", Content_Type="application/json", X_Request_Id="r")
    assert dict(upstream_headers(client, "0")) == {
        "Authorization": "Bearer k",
        "Content-Type": "application/json",
        "X-Request-Id": "r",
        "X-data-parallel-rank": "0",
    }


def test_a_client_cannot_choose_the_rank_or_speak_as_kvatlas() -> None:
    client = proxied(x_DATA_parallel_RANK="7", X_Kvatlas_Worker="1/1")
    headers = upstream_headers(client, "3")
    assert headers.getall("x-data-parallel-rank") == ["3"]
    assert "x-kvatlas-worker" not in headers


def test_of_an_engines_headers_a_short_list_comes_down() -> None:
    engine = proxied(
        Content_Type="text/event-stream",
        Cache_Control="no-cache",
        Retry_After="3",
        Server="engine-7:8000",
        Via="engine-7",
        Location="http://10.0.0.7",
        Set_Cookie="a=b",
        Transfer_Encoding="chunked",
        Content_Length="5",
    )
    assert dict(downstream_headers(engine)) == {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-cache",
        "Retry-After": "3",
    }
