"""The routers that are compared: how each is started on the measured core, which are installed."""

import asyncio
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from kvatlas_loadtest.bench.cell import ANY_PORT, BLOCK_SIZE, MODEL
from kvatlas_loadtest.bench.processes import Cores
from kvatlas_loadtest.fleet import frontend_knows
from kvatlas_loadtest.supervisor import Command, FleetError, Process, Supervisor, kvatlas

KVATLAS = "kvatlas"
NGINX = "nginx"
_READY_TIMEOUT_S = 60.0
_NGINX_FOLDERS = ("/usr/sbin", "/usr/local/sbin")


@dataclass(frozen=True, slots=True)
class Backend:
    """The processes and folders that a router is started with.

    Attributes:
        engines: addresses of the engines.
        indexer: address of the indexer.
        tokenizer: the model's directory.
        folder: a folder for a router's own files.
        programs: folders to search for programs before PATH.
    """

    engines: Sequence[str]
    indexer: str
    tokenizer: Path
    folder: Path
    programs: Sequence[Path]


@dataclass(frozen=True, slots=True)
class Router:
    """A running router."""

    name: str
    process: Process
    address: str


class NotInstalledError(Exception):
    """A peer's program was not found."""


async def start(name: str, supervisor: Supervisor, backend: Backend, cores: Cores) -> Router:
    """Start a router, and wait until it answers.

    Raises:
        NotInstalledError: its program was not found.
        FleetError: it did not start.
    """
    if name == KVATLAS:
        router = await _started_kvatlas(supervisor, backend, cores, processes=1)
    else:
        port = _free_port()
        words = _PEERS[name](backend, port)
        # None of the peers prints when it is ready. The shell's line stands in for that.
        shell = ("sh", "-c", 'echo started; exec "$@" >&2', "sh")
        command = Command(name, (*shell, *words), lambda _: {}, cores.measured)
        (process,) = await supervisor.start([command])
        router = Router(name, process, f"127.0.0.1:{port}")
    await _answers(router)
    return router


async def start_several(
    supervisor: Supervisor, backend: Backend, cores: Cores, *, processes: int
) -> Router:
    """Start kvatlas with so many processes, and wait until it answers.

    Raises:
        FleetError: it did not start.
    """
    router = await _started_kvatlas(supervisor, backend, cores, processes=processes)
    await _answers(router)
    return router


async def _started_kvatlas(
    supervisor: Supervisor, backend: Backend, cores: Cores, *, processes: int
) -> Router:
    name = KVATLAS if processes == 1 else f"{KVATLAS}-{processes}"
    (process,) = await supervisor.start([_kvatlas(name, backend, cores, processes)])
    await frontend_knows(process, len(backend.engines))
    return Router(name, process, process.address())


def _kvatlas(name: str, backend: Backend, cores: Cores, processes: int) -> Command:
    return kvatlas(
        f"frontend-{name}",
        "frontend",
        *("--processes", str(processes)),
        *("--listen", ANY_PORT, "--admin", ANY_PORT, "--indexer", backend.indexer),
        *("--model", MODEL, "--block-size", str(BLOCK_SIZE)),
        *("--tokenizer", str(backend.tokenizer), "--policy", "kv-aware"),
        cores=cores.measured,
    )


def _nginx(backend: Backend, port: int) -> Sequence[str]:
    program = _find(NGINX, backend.programs)
    file = backend.folder / "nginx.conf"
    servers = " ".join(f"server {address};" for address in backend.engines)
    # A worker of another user could not write large bodies to the folder.
    user = "user root; " if os.geteuid() == 0 else ""
    temporary = " ".join(
        f"{kind}_temp_path {backend.folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file.write_text(
        f"{user}worker_processes 1; daemon off; pid {backend.folder}/nginx.pid;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; {temporary}\n"
        "  keepalive_requests 1000000000; client_max_body_size 64m; client_body_buffer_size 1m;\n"
        f"  upstream engines {{ least_conn; {servers} keepalive 256;\n"
        "    keepalive_requests 1000000000; }\n"
        f"  server {{ listen 127.0.0.1:{port} backlog=4096;\n"
        "    location / { proxy_pass http://engines; proxy_http_version 1.1;\n"
        '      proxy_set_header Connection ""; proxy_buffering off; } } }\n'
    )
    return (program, "-c", str(file), "-e", "stderr")


def _vllm_router(backend: Backend, port: int) -> Sequence[str]:
    program = _find("vllm-router", backend.programs)
    return (program, *_cache_aware(backend, port), "--log-level", "error")


def _smg(backend: Backend, port: int) -> Sequence[str]:
    program = _find("smg", backend.programs)
    return (program, "launch", *_cache_aware(backend, port), "--log-level", "error")


def _cache_aware(backend: Backend, port: int) -> Sequence[str]:
    """The flags that both of these routers have."""
    urls = (f"http://{address}" for address in backend.engines)
    listen = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(_free_port()))
    return (*listen, "--policy", "cache_aware", "--worker-urls", *urls)


_PEERS: Mapping[str, Callable[[Backend, int], Sequence[str]]] = {
    NGINX: _nginx,
    "smg": _smg,
    "vllm-router": _vllm_router,
}

ROUTERS = (KVATLAS, *_PEERS)
"""All routers by name, in the order of the table."""


def _find(program: str, folders: Sequence[Path]) -> str:
    path = [*map(str, folders), os.environ.get("PATH", os.defpath), *_NGINX_FOLDERS]
    found = shutil.which(program, path=os.pathsep.join(path))
    if found is None:
        raise NotInstalledError(f"{program} is not installed: not in --peers, not on PATH")
    return str(Path(found).absolute())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def _answers(router: Router) -> None:
    """Wait until a chat request is answered.

    Raises:
        FleetError: that takes too long, or the router ended.
    """
    message = {"role": "user", "content": "Are you there?"}
    body = {"model": MODEL, "messages": [message], "stream": True, "max_tokens": 1}
    url = f"http://{router.address}/v1/chat/completions"
    problem = "no answer"
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S), aiohttp.ClientSession() as session:
            while router.process.exit_status is None:
                try:
                    async with session.post(url, json=body) as response:
                        text = await response.text()
                        if response.ok:
                            return
                        problem = f"{response.status} {text[:200]}"
                except aiohttp.ClientError as error:
                    problem = str(error)
                await asyncio.sleep(0.2)
    except TimeoutError:
        pass
    raise FleetError(f"{router.name} does not answer: {problem}")
