"""A real Apache Kafka as a child process: one KRaft node, from the artifacts of Maven Central.

It needs `java` and `mvn`. The jars are fetched once into the user's cache directory; all processes
share them. The server listens on loopback only and keeps its data from a stop to the next start.
"""

import base64
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from kvatlas_testing.child_process import ChildProcess, EmbeddedServerError, last_lines

_KAFKA = "4.4.0"
_LOG4J = "2.25.5"
_START_S = 60.0
_STOP_S = 15.0
_POLL_S = 0.02
_PORTS = range(20_000, 32_000)
"""Below the ports of outgoing connections, which could take ours while the server is down."""
_READY = "Kafka Server started"
_JVM = (
    *("-Xms64m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    *("-XX:-UsePerfData", "-Xshare:auto"),
)

# kafka-tools-api is declared by the server's artifact, but not published.
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kvatlas</groupId><artifactId>embedded-kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{_KAFKA}</version>
      <exclusions><exclusion>
        <groupId>org.apache.kafka</groupId><artifactId>kafka-tools-api</artifactId>
      </exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{_LOG4J}</version><scope>runtime</scope>
    </dependency>
  </dependencies>
</project>
"""
_LOG4J_PROPERTIES = """appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%p %m%n
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
"""
# One small node; its timeouts and its trimming are fast enough for a test to wait for them.
_PROPERTIES = """process.roles=broker,controller
node.id=1
listeners={clients},{brokers},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENTS://127.0.0.1:{advertised_port},{brokers}
inter.broker.listener.name=BROKERS
controller.listener.names=CONTROLLER
listener.security.protocol.map=CLIENTS:{protocol},BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={directory}/data
auto.create.topics.enable={creates_topics}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=2097152
num.network.threads=2
num.io.threads=2
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=100
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.flush.start.offset.checkpoint.interval.ms=200
"""
_TLS_PROPERTIES = """listener.name.clients.ssl.keystore.type=PEM
listener.name.clients.ssl.keystore.location={certificate}
"""
_CLIENTS_PROPERTIES = """listener.name.clients.ssl.client.auth=required
listener.name.clients.ssl.truststore.type=PEM
listener.name.clients.ssl.truststore.location={authority}
"""
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = "org.apache.kafka.common.security"


class EmbeddedKafka:
    """One server; its methods block.

    Args:
        certificate: PEM file for the listener, with the key (PKCS #8) and the chain; None: no TLS.
        clients_authority: PEM file of the CA that signs clients' certificates; None: clients need
            no certificate.
        users: password of each user, for PLAIN and SCRAM; None: no login.
        advertised_port: loopback port that clients are told, of a proxy; None: the server's own.
        creates_topics: make any topic that a client asks for, as brokers do by default.
    """

    def __init__(
        self,
        *,
        certificate: Path | None = None,
        clients_authority: Path | None = None,
        users: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        creates_topics: bool = False,
    ) -> None:
        self._certificate = certificate
        self._clients_authority = clients_authority
        self._users = users
        self._advertised_port = advertised_port
        self._creates_topics = creates_topics
        self._process = ChildProcess(stop_s=_STOP_S)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0

    @staticmethod
    def obstacle() -> str | None:
        """Return what this machine lacks to run a server; None: nothing."""
        missing = [command for command in ("java", "mvn") if shutil.which(command) is None]
        return f"{' and '.join(missing)} not found" if missing else None

    @property
    def address(self) -> str:
        """HOST:PORT; valid from the first start on."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid

    @property
    def data(self) -> Path:
        """Folder of the partitions' files; valid from the first start on."""
        return Path(self._directory.name if self._directory else ".") / "data"

    def start(self) -> None:
        """Start the server with the data it had, and wait until it serves.

        Raises:
            EmbeddedServerError: the artifacts cannot be fetched, or the server does not start.
        """
        jars = _jars()
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="kvatlas-kafka-")
            self._format(jars)
        folder = Path(self._directory.name)
        command = _java(jars, folder, "kafka.Kafka", str(folder / "server.properties"))
        log = folder / "kafka.log"
        self._process.start(command, output=log)
        began_s = time.monotonic()
        while _READY not in (text := log.read_text(errors="replace")):
            if not self._process.is_running or time.monotonic() - began_s > _START_S:
                self.kill()
                raise EmbeddedServerError(f"Kafka does not start: {last_lines(text)}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the server in good order, if it runs."""
        self._process.stop()

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()

    def close(self) -> None:
        """End the server and delete its data; a later start makes a new cluster on the same port."""
        self.kill()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _format(self, jars: Path) -> None:
        folder = Path(self._directory.name if self._directory else ".")
        self._port = self._port or _free_port()
        (folder / "log4j2.properties").write_text(_LOG4J_PROPERTIES)
        properties = folder / "server.properties"
        sasl = "" if self._users is None else "SASL_"
        properties.write_text(
            _PROPERTIES.format(
                clients=f"CLIENTS://{self.address}",
                brokers=f"BROKERS://127.0.0.1:{_free_port()}",
                advertised_port=self._advertised_port or self._port,
                creates_topics=str(self._creates_topics).lower(),
                controller_port=_free_port(),
                protocol=sasl + ("PLAINTEXT" if self._certificate is None else "SSL"),
                directory=folder,
            )
            + self._access_properties()
        )
        scram = [
            f"{mechanism}=[name={user},password={password}]"
            for user, password in (self._users or {}).items()
            for mechanism in _SCRAM
        ]
        # A cluster id is 16 bytes in base64url. A leading "-" would look like an option.
        cluster = "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        _run(
            "Kafka's storage cannot be formatted",
            _java(
                *(jars, folder, "kafka.tools.StorageTool"),
                *("format", "-t", cluster, "-c", str(properties)),
                *(word for each in scram for word in ("--add-scram", each)),
            ),
        )

    def _access_properties(self) -> str:
        """Return the properties of the clients' listener for TLS and login."""
        certificate = self._certificate
        tls = "" if certificate is None else _TLS_PROPERTIES.format(certificate=certificate)
        if self._clients_authority is not None:
            tls += _CLIENTS_PROPERTIES.format(authority=self._clients_authority)
        if self._users is None:
            return tls
        prefix = "listener.name.clients"
        known = " ".join(f'user_{user}="{password}"' for user, password in self._users.items())
        modules: dict[str, str] = dict.fromkeys(_SCRAM, "scram.ScramLoginModule required")
        modules["PLAIN"] = f"plain.PlainLoginModule required {known}"
        lines = [
            f"{prefix}.{mechanism.lower()}.sasl.jaas.config={_MODULES}.{module};\n"
            for mechanism, module in modules.items()
        ]
        return f"{tls}{prefix}.sasl.enabled.mechanisms={','.join(modules)}\n{''.join(lines)}"


def _java(jars: Path, folder: Path, main: str, *arguments: str) -> list[str]:
    logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
    java = shutil.which("java") or "java"
    return [java, *_JVM, logging, "-cp", f"{jars}/*", main, *arguments]


def _jars() -> Path:
    """Return the folder of the server's jars; the first caller on this machine fetches them."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvatlas"
    jars = caches / f"kafka-{_KAFKA}"
    if jars.is_dir():
        return jars
    caches.mkdir(parents=True, exist_ok=True)
    with (caches / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=caches) as fetching:
                pom, libs = Path(fetching) / "pom.xml", Path(fetching) / "libs"
                pom.write_text(_POM)
                _run(
                    "Kafka's artifacts cannot be fetched",
                    [
                        *("mvn", "-q", "-B", "-ntp", "-f", str(pom)),
                        "dependency:copy-dependencies",
                        *("-DincludeScope=runtime", f"-DoutputDirectory={libs}"),
                    ],
                )
                libs.rename(jars)
    return jars


def _run(failure: str, command: list[str]) -> None:
    done = subprocess.run(  # noqa: S603 - our own arguments
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        raise EmbeddedServerError(f"{failure}: {last_lines(done.stdout.decode(errors='replace'))}")


def _free_port() -> int:
    for port in random.sample(_PORTS, 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedServerError("no free port for Kafka")
