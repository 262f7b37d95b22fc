"""A real REST catalog: Iceberg's own reference server, as a process on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pyspark
from psycopg.conninfo import conninfo_to_dict

_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
_ICEBERG, _JETTY, _POSTGRES = "1.11.0", "12.1.1", "42.7.9"
# Spark's short names of packages know no classifiers, so Ivy is told itself.
_PACKAGES = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tidegate" module="rest"/>
  <configurations defaultconfmapping="default->master,runtime,compile">
    <conf name="default"/>
  </configurations>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-open-api" rev="{_ICEBERG}"
                conf="default->master" transitive="false">
      <artifact name="iceberg-open-api" type="jar" m:classifier="test-fixtures"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{_ICEBERG}">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="{_JETTY}"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-server"
                rev="{_JETTY}"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-gzip"
                rev="{_JETTY}"/>
    <dependency org="org.postgresql" name="postgresql" rev="{_POSTGRES}"/>
  </dependencies>
</ivy-module>
"""
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_START_SECONDS = 120.0


def fetch_server(folder: Path) -> None:
    """Put what the server is made of into a folder, through the Ivy that comes with Spark."""
    folder.mkdir(parents=True)
    (folder / "ivy.xml").write_text(_PACKAGES, encoding="utf-8")
    (ivy,) = _SPARK_JARS.glob("ivy-*.jar")
    pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
    subprocess.run(
        ["java", "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", str(folder / "ivy.xml"),
         "-retrieve", pattern],
        check=True, capture_output=True, timeout=600,
    )  # fmt: skip


@contextmanager
def rest_server(folder: Path, conninfo: str) -> Iterator[str]:
    """The address of a server that keeps its tables in a database and its files in a folder."""
    jars = folder / "jars"
    fetch_server(jars)
    address = conninfo_to_dict(conninfo)
    port = _free_port()
    environment = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": (folder / "warehouse").as_uri(),
        "CATALOG_URI": "jdbc:postgresql://{host}:{port}/{dbname}".format(**address),
        "CATALOG_JDBC_USER": str(address["user"]),
        "CATALOG_JDBC_PASSWORD": str(address["password"]),
    }
    path = os.pathsep.join([f"{jars}/*", *map(str, _SPARK_JARS.glob("hadoop-client-*.jar"))])
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["java", "-cp", path, _MAIN], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/v1/config", process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url):
                return
        except URLError:
            assert process.poll() is None, "the catalog server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
